// Chains of calls that end in hit, each with what runtime.Callers says of it: a line of return addresses,
// from hit's caller outwards.
package main

import (
	"fmt"
	"runtime"
	"sort"
)

type counter struct{ sum int }

//go:noinline
func (c *counter) hit(n int) int {
	var room [9]int
	room[n&7] = n
	c.sum += room[n&7] + depth(n&1)
	return c.sum
}

//go:noinline
func depth(n int) int {
	if n == 0 {
		return 1
	}
	return depth(n-1) + 1
}

//go:noinline
func point(c *counter, n int) int {
	var found [64]uintptr
	count := runtime.Callers(2, found[:])
	line := ""
	for _, address := range found[:count] {
		line += fmt.Sprintf(" %#x", address)
	}
	fmt.Println(line[1:])
	return c.hit(n) + 1
}

// A frame of several pages.
//
//go:noinline
func large(c *counter, n int) int {
	var room [3000]int
	room[n] = point(c, n)
	return room[n] + depth(2)
}

//go:noinline
func deferred(c *counter, n int) (result int) {
	defer func() { result = point(c, n) + 1 }()
	return large(c, n)
}

//go:noinline
func sorted(c *counter) int {
	values := []int{2, 1}
	sort.Slice(values, func(i, j int) bool { return point(c, i) < j })
	return values[0]
}

// The faulting instruction calls runtime.sigpanic, as it seems.
//
//go:noinline
func faulting(c *counter, where *[4]int) (result int) {
	defer func() {
		result = point(c, 2)
		recover()
	}()
	return where[c.sum&3]
}

func main() {
	c := &counter{}
	done := make(chan int)
	go func() { done <- deferred(c, 3) }()
	<-done
	faulting(c, nil)
	method := c.hit
	fmt.Println(sorted(c), method(1))
}
