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
	}
	if last != "abc" || total != 6 || sum != 239+39+6 {
		panic(fmt.Sprint(total, " ", sum))
	}
	fmt.Println("ok go_captured")
}
