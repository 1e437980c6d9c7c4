// A Go program that makes panics of faults of the processor all the time and recovers. With an
// address as argument it maps 16 MiB there first, which nobody may use then. Ends when its input
// ends, or a line comes.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

type large struct {
	pad   [200]byte
	value uint64
}

//go:noinline
func faulted(from *large) (result uint64) {
	defer func() {
		if recover() != nil {
			result = 7
		}
	}()
	return from.value
}

func main() {
	if len(os.Args) > 1 && os.Args[1] != "" {
		address, err := strconv.ParseUint(os.Args[1], 0, 64)
		if err != nil {
			panic(err)
		}
		const fixed = 0x100000 // MAP_FIXED_NOREPLACE
		flags := uintptr(syscall.MAP_PRIVATE | syscall.MAP_ANON | fixed)
		_, _, errno := syscall.Syscall6(syscall.SYS_MMAP, uintptr(address), 16<<20, 0, flags, ^uintptr(0), 0)
		if errno != 0 {
			panic(errno)
		}
	}
	fmt.Println("ready", os.Getpid())
	ended := make(chan bool)
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		ended <- true
	}()
	for {
		select {
		case <-ended:
			fmt.Println("ok faults")
			return
		default:
			if faulted(nil) != 7 {
				fmt.Println("BAD result")
				return
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
}
