package report

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/weir-go/weir/test/bench/result"
)

// dir is the directory of results and figures, in the repository.
const dir = "docs/inside/performance"

// ResultsFile returns the file with the run that the repository's pages show, of limiters or,
// like s, of services.
func ResultsFile(s *result.Set) string {
	if len(s.Rows("service/")) > 0 {
		return dir + "/service.json"
	}
	return dir + "/results.json"
}

// pages have places for blocks.
var pages = []string{"README.md", "docs/inside/performance.md", "docs/reference/operations.md", "docs/reference/throttlerd.md"}

// Publish writes the results, the figures and the blocks of pages into the repository at root.
func Publish(root string, s *result.Set) error {
	files, err := Render(root, s)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil { //nolint:gosec // for everybody to read
			return err
		}
	}
	return s.Write(filepath.Join(root, ResultsFile(s)))
}

// Render returns the contents of the repository's files for s, by name.
func Render(root string, s *result.Set) (map[string][]byte, error) {
	files := make(map[string][]byte)
	for name, svg := range Figures(s) {
		files[filepath.Join(dir, name)] = svg
	}
	for _, name := range pages {
		page, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		files[name] = fill(page, Blocks(s))
	}
	return files, nil
}

var place = regexp.MustCompile(`(?s)(<!-- begin bench (\w+) -->\n).*?(<!-- end bench -->)`)

// fill puts blocks in their places: between a line "<!-- begin bench NAME -->" and the next
// "<!-- end bench -->". A place without a block keeps its text.
func fill(page []byte, blocks []Block) []byte {
	return place.ReplaceAllFunc(page, func(old []byte) []byte {
		parts := place.FindSubmatch(old)
		for _, b := range blocks {
			if b.Name == string(parts[2]) {
				return fmt.Appendf(nil, "%s\n%s\n%s", parts[1], b.Text, parts[3])
			}
		}
		return old
	})
}

// Text returns all blocks as one page for a terminal.
func Text(s *result.Set) string {
	var b strings.Builder
	for _, block := range Blocks(s) {
		fmt.Fprintf(&b, "## %s\n\n%s\n", block.Title, block.Text)
	}
	return b.String()
}
