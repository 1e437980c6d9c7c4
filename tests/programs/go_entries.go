// Functions that goroutines enter deep in recursion, so that their stacks grow at the entries: with
// small, large and huge frames. Prints "main.NAME COUNT SUM" for each and "ok go_entries".
package main

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

type tally struct{ count, sum atomic.Int64 }

func (t *tally) add(k int) {
	t.count.Add(1)
	t.sum.Add(int64(k))
}

var smalls, larges, huges tally

//go:noinline
func small(k int) int {
	smalls.add(k)
	if k%40 == 7 {
		runtime.Gosched() // goes on in another thread, maybe
	}
	if k == 0 {
		return 0
	}
	return small(k-1) + 1
}

//go:noinline
func large(k int) int {
	var frame [500]byte
	frame[k] = 1
	larges.add(k)
	if k == 0 {
		return int(frame[k])
	}
	return large(k-1) + int(frame[k])
}

//go:noinline
func huge(k int) int {
	var frame [10000]byte
	frame[k] = 1
	huges.add(k)
	if k == 0 {
		return int(frame[k])
	}
	return huge(k-1) + int(frame[k])
}

//go:noinline
func refuse(n int) int {
	if n%3 == 0 {
		panic("a third")
	}
	return n
}

//go:noinline
func caught(n int) (result int) {
	defer func() {
		if recover() != nil {
			result = -1
		}
	}()
	return refuse(n) + 1
}

func main() {
	for n := 0; n < 30; n++ {
		caught(n)
	}
	for round := 0; round < 3; round++ {
		var wait sync.WaitGroup
		for i := 0; i < 20; i++ {
			wait.Add(1)
			go func() {
				defer wait.Done()
				small(300)
				large(60)
				huge(20)
			}()
		}
		wait.Wait()
	}
	for _, of := range []struct {
		name string
		of   *tally
	}{{"small", &smalls}, {"large", &larges}, {"huge", &huges}} {
		fmt.Println("main."+of.name, of.of.count.Load(), of.of.sum.Load())
	}
	fmt.Println("ok go_entries")
}
