// Generic functions and methods, each instantiated once or twice.
package main

import "fmt"

type pair[K comparable, V any] struct {
	key   K
	value V
}

//go:noinline
func (p *pair[K, V]) first() K { return p.key }

//go:noinline
func twice[T any](s []T) []T { return append(s, s...) }

//go:noinline
func once[T any](n T) []T { return []T{n} }

func main() {
	p := &pair[string, int]{"k", 3}
	fmt.Println(p.first(), twice([]int{1, 2}), twice([]string{"a"}), once(int64(7)))
}
