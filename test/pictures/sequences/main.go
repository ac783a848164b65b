// Command sequences draws the messages between parts of the library, from runs of it:
//
//	go -C test run ./pictures/sequences
//
// It writes docs/pictures/charge.svg, about requests, and docs/pictures/handoff.svg, about a
// count that moves.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// pictures are the pictures that the command draws, by file name.
var pictures = map[string]func() *sequence{"charge.svg": charge, "handoff.svg": move}

func main() {
	dir := flag.String("dir", filepath.Join("..", "docs", "pictures"), "where to write the pictures")
	flag.Parse()
	for name, draw := range pictures {
		if err := os.WriteFile(filepath.Join(*dir, name), draw().svg(), 0o644); err != nil { //nolint:gosec // a picture for everybody
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
