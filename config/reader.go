package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/internal/invalid"
)

// maxBytes bounds a file, at more than 100,000 policies.
const maxBytes = 8 << 20

// maxDepth bounds the nesting of a file: a problem names all levels.
const maxDepth = 256

// reader reads a file and collects its problems.
type reader struct {
	name     string
	top      place
	problems []problem
	depth    int // of the value that is being decoded
	getenv   func(string) string
}

type problem struct {
	line int // 0 if it concerns the whole file
	text string
}

func newReader(name string) *reader { return &reader{name: name, getenv: os.Getenv} }

// at returns the place below the top that keys lead to.
func (r *reader) at(keys ...string) *place { return r.top.at(keys...) }

// problem adds a problem with the value at p, in its line, or if the file does not have it, in
// the line of the value that it is missing from.
func (r *reader) problem(p *place, format string, args ...any) {
	line, at := 1, p
	for ; at.up != nil && at.node == nil; at = at.up {
	}
	if at.node != nil {
		line = at.node.Line
	}
	r.problemIn(line, p, format, args...)
}

func (r *reader) problemIn(line int, p *place, format string, args ...any) {
	p.said = true
	for ; p != nil && !p.wrong; p = p.up {
		p.wrong = true
	}
	r.problems = append(r.problems, problem{line, fmt.Sprintf(format, args...)})
}

// mustBe adds a problem with the value at p. right describes a valid value.
func (r *reader) mustBe(p *place, right string) {
	node := p.node
	is := "a mapping"
	switch {
	case !p.has(), node.Kind == yaml.ScalarNode && node.Value == "":
		is = "missing"
	case node.Kind == yaml.ScalarNode:
		is = quoted(node.Value)
	case node.Kind == yaml.SequenceNode && len(node.Content) == 0:
		is = "empty"
	case node.Kind == yaml.SequenceNode:
		is = "a list"
	}
	r.problem(p, "%v is %s; it must be %s", p, is, right)
}

// within adds a problem if the file has a time at p that is out of bounds.
func (r *reader) within(p *place, d, least, most time.Duration) {
	if p.has() && !p.wrong && (d < least || d > most) {
		r.mustBe(p, fmt.Sprintf("from %v to %v", least, most))
	}
}

// distinct adds a problem for each of n values that equals an earlier one. The values are the
// items of the list at p, or the values at keys of the items.
func (r *reader) distinct(p *place, n int, value func(i int) string, because string, keys ...string) {
	first := make(map[string]*place)
	for i := range n {
		v, at := value(i), p.item(i).at(keys...)
		if before, again := first[v]; again && v != "" {
			r.problem(at, "%v is %s, as %v is; %s", at, quoted(v), before, because)
		} else {
			first[v] = at
		}
	}
}

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }

// err returns the problems, one a line, in the order of the file, or nil.
func (r *reader) err() error {
	slices.SortStableFunc(r.problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	var all []error
	for _, p := range r.problems {
		at := r.name
		if p.line > 0 {
			at = fmt.Sprintf("%s:%d", r.name, p.line)
		}
		all = append(all, invalid.Errorf("%s: %s", at, p.text))
	}
	return errors.Join(all...)
}

var plainKey = regexp.MustCompile(`^[\w-]+$`)

// spelled returns a key as a problem shows it.
func spelled(key string) string {
	if plainKey.MatchString(key) && len(key) <= mostShown {
		return key
	}
	return quoted(key)
}

const mostShown = 80 // bytes of a key or value

func quoted(text string) string {
	if len(text) > mostShown {
		return strconv.Quote(text[:mostShown]) + "…"
	}
	return strconv.Quote(text)
}

// readFile returns the content of a file. The error does not name the file.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, withoutName(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("the file has more than %d bytes", maxBytes)
	}
	return text, withoutName(err)
}

// withoutName returns the cause of an error about a file; problems name the file.
func withoutName(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// file is a file that the configuration names, and its content. In the configuration, its name
// is relative to the configuration's directory.
type file struct {
	name    string // "" if the configuration names no file
	content []byte // nil if it cannot be read
}

func (f *file) read(r *reader, node *yaml.Node, p *place, right string) {
	if node.Kind != yaml.ScalarNode || node.Value == "" {
		r.mustBe(p, right)
		return
	}
	if f.name = node.Value; !filepath.IsAbs(f.name) {
		f.name = filepath.Join(filepath.Dir(r.name), f.name)
	}
	var err error
	if f.content, err = readFile(f.name); err != nil {
		r.problem(p, "%v is %s: %v; it must be %s", p, quoted(node.Value), err, right)
	}
}

// parse returns the top node of the text, or nil after adding a problem: empty if the text has
// no values, or that it is not YAML. A second document is a problem, too.
func (r *reader) parse(text []byte, empty string) *yaml.Node {
	lines := bytes.Split(text, []byte("\n"))
	if i := slices.IndexFunc(lines, func(line []byte) bool { return !utf8.Valid(line) }); i >= 0 {
		r.problemIn(i+1, &r.top, "the text is not UTF-8; save it as UTF-8")
		return nil
	}
	if i := slices.IndexFunc(lines, hasControl); i >= 0 {
		r.problemIn(i+1, &r.top, "the line has a control character; write it as an escape such as \\0 in double quotes, or leave it out")
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		r.problemIn(0, &r.top, "%v", err)
		return nil
	}
	var document, second yaml.Node
	switch err := loader.Load(&document); {
	case errors.Is(err, io.EOF):
		r.problemIn(0, &r.top, "%s", empty)
		return nil
	case err != nil:
		r.syntax(lines, err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		r.problemIn(second.Line, &r.top, "a second document begins here; one file is one configuration")
	case !errors.Is(err, io.EOF):
		r.syntax(lines, err)
	}
	top := document.Content[0]
	if !isNull(top) {
		return top
	}
	if len(r.problems) == 0 {
		r.problemIn(0, &r.top, "%s", empty)
	}
	return nil
}

// hasControl reports whether a line has a control character that YAML forbids.
func hasControl(line []byte) bool {
	return bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' && c != '\r' || c == 0x7f })
}

// syntax adds an error of the YAML parser.
func (r *reader) syntax(lines [][]byte, err error) {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		r.problemIn(0, &r.top, "%v", err)
		return
	}
	what := at.Message
	switch n := at.Mark.Line - 1; {
	case n >= 0 && n < len(lines) && indentedByTab.Match(lines[n]):
		what = "the line begins with a tab; indent it by spaces, as YAML asks"
	case strings.Contains(what, "cannot start any token"):
		what += "; write the value in quotes"
	case strings.HasPrefix(what, "unknown anchor"):
		what += "; write the value itself"
	case at.ContextMsg != "" && at.ContextMark.Line > 0:
		what += fmt.Sprintf(", %s that begins in line %d", at.ContextMsg, at.ContextMark.Line)
	}
	r.problemIn(at.Mark.Line, &r.top, "%s", what)
}

var indentedByTab = regexp.MustCompile(`^ *\t`)
