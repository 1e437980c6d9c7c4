// Package variables, and a pointer to a pointer to an array.
package main

import (
	"fmt"
	astore "globals/a/store"
	bstore "globals/b/store"
)

type pair struct{ a, b int }

var counter int
var current pair
var Name = "of main"

//go:noinline
func work(n int, pp **[3]int) int {
	counter += n
	current.b = n * 2
	(*pp)[1] += n
	return counter + (**pp)[0]
}

func main() {
	array := [3]int{7, 8, 9}
	pointer := &array
	sum := 0
	for n := 0; n < 4; n++ {
		sum += work(n, &pointer) + astore.Put(n) + bstore.Put(2*n)
	}
	fmt.Println("ok go_globals", sum > 0, Name)
}
