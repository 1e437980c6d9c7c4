// Known answers of a Go program: sorting, maps, regular expressions, JSON, digests,
// goroutines, channels, panics and the garbage collector. For each line on standard input
// it prints the answers and the line "done"; at the end "ok". The line "faults" asks for
// panics that come from faults of the processor.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"os"
	"regexp"
	"runtime"
	"sort"
	"strings"
	"sync"
	"time"
)

func mix(x uint64) uint64 {
	x ^= x >> 31
	x *= 0x9e3779b97f4a7c15
	return x ^ x>>29
}

type tree struct {
	Left  *tree  `json:"left,omitempty"`
	Right *tree  `json:"right,omitempty"`
	Value uint64 `json:"value"`
	Text  string `json:"text"`
}

//go:noinline
func grow(depth int, seed uint64) *tree {
	if depth == 0 {
		return nil
	}
	t := &tree{Value: mix(seed) % 1000, Text: strings.Repeat("x", int(seed%17))}
	t.Left = grow(depth-1, seed*2)
	t.Right = grow(depth-1, seed*2+1)
	return t
}

//go:noinline
func (t *tree) sum() uint64 {
	if t == nil {
		return 0
	}
	return t.Value + t.Left.sum()*3 + t.Right.sum()*5 + uint64(len(t.Text))
}

//go:noinline
func recovered(depth int) (result string) {
	defer func() {
		if r := recover(); r != nil {
			result = fmt.Sprintf("%v at %d", r, depth)
			if depth > 5 {
				panic(errors.New(result))
			}
		}
	}()
	if depth == 0 {
		var none []int
		return fmt.Sprint(none[depth])
	}
	return recovered(depth-1) + "."
}

type far struct {
	pad   [200]byte
	value uint64
}

// A fault of the processor, in a long instruction, that becomes a panic.
//
//go:noinline
func faulted(f *far) (result string) {
	defer func() { result = fmt.Sprint(recover()) }()
	return fmt.Sprint(f.value)
}

// A stack that has to grow, and is moved.
//
//go:noinline
func deep(n int, numbers [16]uint64) uint64 {
	if n == 0 {
		return numbers[3]
	}
	numbers[n%16] += mix(uint64(n))
	return deep(n-1, numbers) + numbers[(n+5)%16]
}

func answer(out *bufio.Writer) {
	numbers := make([]uint64, 4000)
	for i := range numbers {
		numbers[i] = mix(uint64(i))
	}
	sort.Slice(numbers, func(i, j int) bool { return numbers[i] < numbers[j] })
	fmt.Fprintln(out, "sorted", numbers[0], numbers[2000], numbers[3999])

	words := map[string]int{}
	for i := 0; i < 3000; i++ {
		words[fmt.Sprintf("w%d", mix(uint64(i))%700)]++
	}
	keys := make([]string, 0, len(words))
	for k := range words {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	fmt.Fprintln(out, "map", len(keys), keys[0], words[keys[0]], keys[len(keys)-1])

	t := grow(9, 1)
	text, err := json.Marshal(t)
	if err != nil {
		panic(err)
	}
	var back tree
	if err := json.Unmarshal(text, &back); err != nil {
		panic(err)
	}
	fmt.Fprintf(out, "json %d %d %d %08x\n", len(text), t.sum(), back.sum(), crc32.ChecksumIEEE(text))
	fmt.Fprintf(out, "sha256 %x\n", sha256.Sum256(text))

	expression := regexp.MustCompile(`"value":(\d+),"text":"(x{3,9})"`)
	found := expression.FindAllStringSubmatch(string(text), -1)
	fmt.Fprintln(out, "regexp", len(found), found[len(found)-1])

	factorial := big.NewInt(1)
	for i := int64(2); i <= 200; i++ {
		factorial.Mul(factorial, big.NewInt(i))
	}
	fmt.Fprintf(out, "big %s %.5f %v\n", factorial.String()[:30], 1.0/3, strings.Fields(" a  b c "))
	fmt.Fprintln(out, "panic", recovered(4))
	fmt.Fprintln(out, "deep", deep(3000, [16]uint64{}))

	results := make(chan uint64, 10)
	var group sync.WaitGroup
	var lock sync.Mutex
	total := uint64(0)
	for g := 0; g < 20; g++ {
		group.Add(1)
		go func(g int) {
			defer group.Done()
			s := deep(100*g, [16]uint64{1: uint64(g)})
			lock.Lock()
			total += s
			lock.Unlock()
			select {
			case results <- s:
			case <-time.After(time.Minute):
				panic("nobody reads")
			}
		}(g)
	}
	go func() { group.Wait(); close(results) }()
	received := uint64(0)
	for s := range results {
		received += s
	}
	runtime.GC()
	fmt.Fprintln(out, "goroutines", total, total == received)
}

func main() {
	fmt.Println("ready", os.Getpid())
	input := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	count := 0
	for input.Scan() {
		if input.Text() == "faults" {
			fmt.Fprintln(out, "fault", faulted(nil), faulted(&far{value: 7}))
		} else {
			answer(out)
		}
		fmt.Fprintln(out, "done")
		out.Flush()
		count++
	}
	fmt.Println("ok", count)
}
