// Command figures draws figures that tests of the library have written as JSON:
//
//	go -C test run ./pictures/figures ../docs/reference/consistency/*.json
//
// It replaces each file by a picture, such as level.json by level.svg.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/test/internal/draw"
)

func main() {
	for _, name := range os.Args[1:] {
		if err := replace(name); err != nil {
			fmt.Fprintf(os.Stderr, "figures: %s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

func replace(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	base, ok := strings.CutSuffix(name, ".json")
	if !ok {
		return errors.New("not a .json file")
	}
	var f figure.Figure
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if err := os.WriteFile(base+".svg", draw.SVG(f), 0o644); err != nil { //nolint:gosec // a picture for everybody
		return err
	}
	return os.Remove(name)
}
