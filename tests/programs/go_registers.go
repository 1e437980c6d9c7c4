// Functions whose arguments and results are in Go's registers. Prints "ok go_registers".
package main

import "fmt"

type thing struct {
	a int
	s string
}

//go:noinline
func numbers(a, b, c, d, e, f, g, h, i, j int) int {
	return a + b + c + d + e + f + g + h + i + j
}

//go:noinline
func words(s string, n int32, x float64) float64 {
	return float64(len(s)+int(n)) * x
}

//go:noinline
func (t *thing) method(n uint8) (string, int) {
	return t.s[n:], t.a
}

//go:noinline
func memory(of [2]int, n int) [2]int {
	return [2]int{of[1] + n, of[0]}
}

func main() {
	t := &thing{77, "text"}
	sum := numbers(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	product := words("hello", 42, 2.5)
	rest, a := t.method(1)
	pair := memory([2]int{100, 200}, 5)
	if sum == 55 && product == 117.5 && rest == "ext" && a == 77 && pair == [2]int{205, 100} {
		fmt.Println("ok go_registers")
	}
}
