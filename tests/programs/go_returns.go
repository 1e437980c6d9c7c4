// Functions whose returns are probed, in goroutines whose stacks grow, and so move, in the
// middle of them. Prints "main.NAME COUNT SUM" and "ok".
package main

import (
	"fmt"
	"sync"
	"sync/atomic"
)

var count, sum atomic.Int64

//go:noinline
func grow(depth int, filler [16]int64) int64 {
	var result int64
	if depth > 0 {
		filler[depth%16]++
		result = grow(depth-1, filler) + filler[(depth+1)%16] + 1
	}
	count.Add(1)
	sum.Add(result)
	return result
}

//go:noinline
func broken(n int) (result int64) {
	defer func() {
		if recover() != nil {
			result = -1
		}
	}()
	if n%2 == 0 {
		panic("even")
	}
	return int64(n)
}

func main() {
	var wait sync.WaitGroup
	for i := 0; i < 8; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for round := 0; round < 20; round++ {
				grow(round*40+i, [16]int64{})
			}
		}()
	}
	wait.Wait()
	var values int64
	for n := 0; n < 40; n++ {
		values += broken(n)
	}
	fmt.Println("main.grow", count.Load(), sum.Load())
	fmt.Println("main.broken", 40, values)
	fmt.Println("ok go_returns")
}
