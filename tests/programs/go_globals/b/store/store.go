// Package store has variables of the same names as another of the same name.
package store

// Items counts what was put here.
var Items int

//go:noinline
func Put(n int) int {
	Items += n
	return Items
}
