// Command traces draws the same traffic through the algorithms, and measures the error of two
// of them.
//
//	go -C test run ./pictures/traces            writes docs/pictures/algorithms.svg
//	go -C test run ./pictures/traces -measure   prints the figures of docs/start/algorithms.md
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/weir-go/weir/throttler/quota"
)

func main() {
	measure := flag.Bool("measure", false, "print how far the algorithms are off, instead of drawing")
	dir := flag.String("dir", filepath.Join("..", "docs", "pictures"), "where to write the pictures")
	flag.Parse()
	if *measure {
		printFigures(os.Stdout)
		return
	}
	if err := os.WriteFile(filepath.Join(*dir, "algorithms.svg"), overview(), 0o644); err != nil { //nolint:gosec // a picture for everybody
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var algorithms = slices.DeleteFunc(quota.Algorithms(), quota.Algorithm.Holds) // a request in flight has no known end
