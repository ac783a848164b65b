package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-go/weir/test/bench/result"
)

// ResultsFile contains the run that the repository's pages show.
const ResultsFile = "docs/inside/performance/results.json"

// pages are the pages with places for blocks.
var pages = []string{"README.md", "docs/inside/performance.md", "docs/reference/operations.md"}

// Publish writes the results, the figures and the blocks of pages into the
// repository at root.
func Publish(root string, s *result.Set) error {
	if err := s.Write(filepath.Join(root, ResultsFile)); err != nil {
		return err
	}
	files, err := Render(root, s)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil { //nolint:gosec // for everybody to read
			return err
		}
	}
	return nil
}

// Render returns the contents of the repository's files for s, by name.
func Render(root string, s *result.Set) (map[string][]byte, error) {
	files := make(map[string][]byte)
	for name, svg := range Figures(s) {
		files[filepath.Join(filepath.Dir(ResultsFile), name)] = svg
	}
	blocks := Blocks(s)
	for _, name := range pages {
		page, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		if files[name], err = fill(page, blocks); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return files, nil
}

const (
	placeBegin = "<!-- begin bench "
	placeEnd   = "<!-- end bench -->"
)

// fill puts blocks in their places: between a line "<!-- begin bench NAME -->" and the next
// "<!-- end bench -->". It empties a place without a block.
func fill(page []byte, blocks []Block) ([]byte, error) {
	texts := make(map[string]string)
	for _, b := range blocks {
		texts[b.Name] = b.Text
	}
	var out bytes.Buffer
	for {
		before, rest, found := bytes.Cut(page, []byte(placeBegin))
		out.Write(before)
		if !found {
			return out.Bytes(), nil
		}
		name, rest, ok := bytes.Cut(rest, []byte(" -->\n"))
		_, after, ended := bytes.Cut(rest, []byte(placeEnd))
		if !ok || !ended {
			return nil, fmt.Errorf("the place %.20q has no end", name)
		}
		fmt.Fprintf(&out, "%s%s -->\n\n%s\n%s", placeBegin, name, texts[string(name)], placeEnd)
		page = after
	}
}

// Text returns all blocks as one page for a terminal.
func Text(s *result.Set) string {
	var b strings.Builder
	for _, block := range Blocks(s) {
		fmt.Fprintf(&b, "## %s\n\n%s\n", block.Title, block.Text)
	}
	return b.String()
}
