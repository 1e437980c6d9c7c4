package main

import (
	"os"
	"strconv"
	"time"
)

type node struct {
	next *node
	data [64]byte
}

var kept *node

func main() {
	seconds, _ := strconv.Atoi(os.Args[1])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	for time.Now().Before(end) {
		kept = nil
		for i := 0; i < 20000; i++ {
			kept = &node{next: kept}
		}
		time.Sleep(time.Millisecond)
	}
}
