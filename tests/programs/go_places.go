// Parameters of Go in several words, with padding, on the stack, and of functions that do not use them.
package main

import "fmt"

type padded struct {
	a bool
	b uint32
	c uint8
	d string
}

var sum int

//go:noinline
func pieces(x padded, n int) int { sum += n; return sum + len(x.d) }

//go:noinline
func (x padded) method(n int) int { sum += n; return sum + int(x.b) }

//go:noinline
func stacked(a0 string, a1 string, a2 int8, a3 int32, a4 string, a5 string, a7 uint, a8 string) int {
	sum += int(a2)
	return len(a0) + len(a1) + len(a4) + len(a8)
}

//go:noinline
func grows(id int, used int, unused string, m int) int {
	var buf [4000]byte
	n := sum + 3
	buf[n%4000] = byte(used)
	sum += int(buf[(n*7)%4000])
	return sum + n + used
}

//go:noinline
func idle(id int, unused string, m int) int {
	var buf [4000]byte
	n := sum + 3
	buf[n%4000] = 1
	sum += int(buf[(n*7)%4000])
	return sum + n
}

//go:noinline
func name(i int) string { return fmt.Sprint("name", i) }

//go:noinline
func use(n int) { sum += n }

//go:noinline
func local(i int) int {
	s := name(i)
	use(i)
	use(len(s)) // LINE local
	return len(s)
}

//go:noinline
func spilled(i int, in string) int {
	use(i)
	use(len(in) + int(in[0])) // LINE spilled
	return len(in) + i
}

func main() {
	done := make(chan bool)
	for i := 0; i < 3; i++ {
		x := padded{true, uint32(1000 + i), uint8(10 + i), "hello"}
		sum += pieces(x, i) + x.method(i) + local(i) + spilled(i, "abc")
		sum += stacked("zero", "one", 2, 3, "four", "five", 7, "eight")
		// On new stacks, which have to grow.
		go func() { sum += grows(100+i, 200+i, "hello", i); done <- true }()
		<-done
		go func() { sum += idle(100+i, "hello", i); done <- true }()
		<-done
	}
	if sum > 0 {
		fmt.Println("ok go_places")
	}
}
