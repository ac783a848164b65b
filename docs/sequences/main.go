// Command sequences draws what a client, the middleware and a store say to each other, from a
// run of the library:
//
//	go run ./docs/sequences
//
// writes docs/sequences/charge.svg.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", filepath.Join("docs", "sequences"), "where to write the picture")
	flag.Parse()
	if err := os.WriteFile(filepath.Join(*dir, "charge.svg"), charge().svg(), 0o644); err != nil { //nolint:gosec // a picture for everybody
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
