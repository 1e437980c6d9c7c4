// Calls with texts of Go: strings and slices of bytes, in registers and in structs.
package main

import (
	"fmt"
	"strings"
)

type order struct {
	id   int
	name string
	data []byte
}

//go:noinline
func take(text string, data []byte, o *order) int {
	return len(text) + len(data) + len(o.name) + len(o.data) + o.id
}

//go:noinline
func made(text string) string {
	return text
}

//go:noinline
func seen(data []byte) []byte {
	return data
}

func main() {
	sum := 0
	for _, text := range []string{"short", "", "a\x00b", "grüße", strings.Repeat("x", 2000)} {
		o := &order{1, text + "!", []byte(text + "?")}
		sum += len(made(text)) + len(seen([]byte(text)))
		sum += take(text, []byte(text)[len(text)/2:], o)
	}
	if sum > 0 {
		fmt.Println("ok texts")
	}
}
