// Function literals that use variables of the function around them, and variables that outlive a call.
package main

import "fmt"

//go:noinline
func run(f func(int) int, n int) int { return f(n) }

//go:noinline
func keep(p *int) { kept = p }

var kept *int
var last string

//go:noinline
func moved(n int) int {
	far := n + 5
	keep(&far)
	far += *kept // LINE moved
	return far + n
}

//go:noinline
func arrives(n int) *int {
	n++
	return &n // LINE arrives
}

//go:noinline
func given() (string, int64) { return "abc", 77 }

var words = [5]int{61, 62, 63, 64, 65}

type large struct {
	a *[5]int
	b, c, d, e int
}

//go:noinline
func keepAny(...any) {}

// What a literal captures by value and Go does not keep in registers.
//
//go:noinline
func inMemory(n int) func() {
	big := large{&words, n, n + 1, n + 2, n + 3}
	pair := [2]int{n, n + 1}
	return func() {
		keepAny(big, pair[n&1], n) // LINE in memory
	}
}

//go:noinline
func small(n int) func() {
	a, b, c, e := int8(n), int16(n*100), int32(n*1000), n%2 == 0
	return func() {
		keepAny(a, b, c, e) // LINE small
	}
}

//go:noinline
func hidden(x, y int) int {
	f := func(k int) int {
		last = fmt.Sprint(y, k) // LINE captured
		y := x * k
		last = fmt.Sprint(y) // LINE local
		return y
	}
	return run(f, x+1)
}

//go:noinline
func stacked(a, b, c, d, e, f, g, h, i int, k int8, m int) {
	keepAny(&k, &m) // LINE stacked
	k++
	last = fmt.Sprint(k, m) // LINE later
}

func main() {
	total := 0
	name, k := given()
	add := func(n int) int {
		total += 2 * n
		last = name
		return total + int(k) // LINE last
	}
	sum := 0
	for i := 0; i < 3; i++ {
		sum += run(add, i)
		sum += moved(i)
		sum += *arrives(i)
		inMemory(i)()
		small(i)()
		hidden(i, 7)
		stacked(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 90+i)
	}
	last = "abc"
	if total != 6 || sum != 239+39+6 {
		panic(fmt.Sprint(total, " ", sum))
	}
	fmt.Println("ok go_captured")
}
