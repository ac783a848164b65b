// Package docs_test checks the README and the pages of this directory: their Go
// code compiles, and their links lead somewhere.
package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	_ "github.com/weir-go/weir" // of the programs: go test runs again when it changes
)

// pages returns the text of the README and of each page, by file name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names := append(glob(t, "*.md"), glob(t, "*/*.md")...)
	texts := make(map[string]string)
	for _, name := range append(names, "../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../SECURITY.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	return texts
}

// hasProgram reports whether dir has a main.go.
func hasProgram(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "main.go"))
	return err == nil
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// A page next to a directory of its name with a program shows that program. On other pages, a Go block
// that begins with a package clause is a program, and is vetted. Any other block is part of an
// example_test.go, which has its own tests.
func TestGoCode(t *testing.T) {
	examples := exampleFiles(t)
	var inContrib []string // programs of another module, which has their tests
	for _, name := range glob(t, "../contrib/*/*/main.go") {
		program, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		inContrib = append(inContrib, string(program))
	}
	programs := 0
	for name, text := range pages(t) {
		for _, match := range goBlock.FindAllStringSubmatch(text, -1) {
			block := match[1]
			if dir := strings.TrimSuffix(name, ".md"); hasProgram(dir) {
				program, err := os.ReadFile(filepath.Join(dir, "main.go")) // it has a test
				if lines := strings.Count(block, "\n"); err != nil || block != string(program) || lines > 60 {
					t.Errorf("%s: the program is not that of %s, or has %d lines, above 60: %v", name, dir, lines, err)
				}
			} else if strings.HasPrefix(block, "package ") {
				programs++
				if !slices.ContainsFunc(inContrib, func(program string) bool { return strings.HasSuffix(program, block) }) {
					vet(t, name, block)
				}
			} else if !strings.Contains(examples, unindented(block)) {
				t.Errorf("%s: no example_test.go has these lines:\n%s", name, block)
			}
		}
	}
	if programs < 2 {
		t.Errorf("%d programs; the README has two", programs)
	}
}

func vet(t *testing.T, page, program string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", page, err, out)
	}
}

// exampleFiles returns the lines of all examples of the module, unindented.
func exampleFiles(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"../example_test.go", "../*/example_test.go", "../*/*/example_test.go", "../*/*/*/example_test.go"} {
		for _, name := range glob(t, pattern) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all.WriteString(unindented(string(text)))
		}
	}
	return all.String()
}

func unindented(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

func TestLinks(t *testing.T) {
	for name, text := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, ":") {
				continue // another site's
			}
			file := name
			if target != "" {
				file = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s leads nowhere", name, match[1])
				continue
			}
			if anchor == "" {
				continue
			}
			linked, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !anchors(string(linked))[anchor] {
				t.Errorf("%s: %s: %s has no such heading", name, match[1], file)
			}
		}
	}
}

// anchors returns the fragments of GitHub's links to a page's headings.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		found[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return r
			}
			return -1
		}, heading)] = true
	}
	return found
}
