// Arrays behind pointers, in Go.
package main

import "fmt"

type quad struct {
	p *[4]uint32
	n int
}

//go:noinline
func take(p *[3]int, q *quad, pp **[3]int) int {
	return p[1] + int(q.p[2]) + (*pp)[0]
}

//go:noinline
func total(s []int) int {
	return s[0] + s[1]
}

func main() {
	sum := 0
	for i := 0; i < 100; i++ {
		array := &[3]int{i, i + 1000, i + 2000}
		q := &quad{&[4]uint32{1, 2, uint32(i + 3000), 4}, i}
		sum += take(array, q, &array) + total(array[:])
	}
	if sum > 0 {
		fmt.Println("ok arrays")
	}
}
