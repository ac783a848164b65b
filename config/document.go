package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/internal/invalid"
)

// document is a file in YAML, and the problems that were found in it.
type document struct {
	name     string
	top      *yaml.Node
	below    map[*yaml.Node]*mapping
	decoding map[*yaml.Node]bool // nodes with an anchor that are being decoded
	copying  int                 // aliases that are being decoded
	copies   int                 // nodes decoded below them
	cut      bool                // a part of the file was left out
	problems []problem
	wrong    map[string]bool // paths of values with a problem, and the paths above them
	unread   map[string]bool // paths of values that could not be decoded
	getenv   func(string) string
}

type problem struct {
	line int // 0 if it concerns the whole file
	key  any // equal for problems that an alias repeats
	error
}

func newDocument(name string) *document {
	return &document{
		name: name, below: make(map[*yaml.Node]*mapping), decoding: make(map[*yaml.Node]bool),
		wrong: make(map[string]bool), unread: make(map[string]bool), getenv: os.Getenv,
	}
}

// path leads from the top of a file to a value, which the file may not have. It consists of
// keys, and of [0] for the items of lists.
type path []string

func (p path) child(keys ...string) path { return append(slices.Clip(p), keys...) }

func (p path) item(i int) path { return p.child(fmt.Sprintf("[%d]", i)) }

func (p path) isItem() bool { return len(p) > 0 && strings.HasPrefix(p[len(p)-1], "[") }

var plainKey = regexp.MustCompile(`^([\w-]{1,80}|<<|\[\d+\])$`)

// String returns the path as problems show it, such as policies.core.limits[0].quota.
func (p path) String() string {
	var s strings.Builder
	for i, key := range p {
		if i > 0 && !strings.HasPrefix(key, "[") {
			s.WriteByte('.')
		}
		s.WriteString(spelled(key))
	}
	return cmp.Or(s.String(), "the file")
}

// pathOf is the reverse of String for a path whose keys are plain words.
func pathOf(text string) path { return strings.Split(strings.ReplaceAll(text, "[", ".["), ".") }

func spelled(key string) string {
	if plainKey.MatchString(key) {
		return key
	}
	return quoted(key)
}

// quoted quotes the first 80 bytes of a text.
func quoted(text string) string {
	if len(text) > 80 {
		return strconv.Quote(text[:80]) + "…"
	}
	return strconv.Quote(text)
}

// add adds a problem in a line, with the value at p.
func (d *document) add(line int, p path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.addOnce(text, line, p, text)
}

// addOnce adds a problem, unless there is one with an equal key.
func (d *document) addOnce(key any, line int, p path, text string) {
	for i := len(p); i >= 0 && !d.wrong[p[:i].String()]; i-- {
		d.wrong[p[:i].String()] = true
	}
	place := d.name
	if line > 0 {
		place = fmt.Sprintf("%s:%d", d.name, line)
	}
	d.problems = append(d.problems, problem{line, key, invalid.Errorf("%s: %s", place, text)})
}

// problem adds a problem with a decoded value, or with one that is missing. A value below one
// that could not be decoded is not decoded either, so it has no further problem.
func (d *document) problem(p path, format string, args ...any) {
	line := 0
	for i := len(p); i >= 0; i-- {
		if d.unread[p[:i].String()] {
			return
		}
		if node := d.get(p[:i]); node != nil && line == 0 {
			line = node.Line
		}
	}
	d.add(max(1, line), p, format, args...)
}

// mustBe adds a problem with the value at p, unless there is one already. right describes a
// valid value.
func (d *document) mustBe(p path, right string) {
	if !d.wrong[p.String()] {
		d.problem(p, "%v is %s; it must be %s", p, shown(d.get(p)), right)
	}
}

// withoutPackage returns the text of an error of weir without the name of its package.
func withoutPackage(err error) string {
	if name, tail, ok := strings.Cut(err.Error(), ": "); ok && !strings.Contains(name, " ") {
		return tail
	}
	return err.Error()
}

func shown(node *yaml.Node) string {
	switch node = resolved(node); {
	case isNull(node), node.Kind == yaml.ScalarNode && node.Value == "":
		return "missing"
	case node.Kind == yaml.ScalarNode:
		return quoted(node.Value)
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case len(node.Content) == 0:
		return "empty"
	}
	return "a list"
}

// err returns the problems, one a line, in the order of the file, or nil.
func (d *document) err() error {
	slices.SortStableFunc(d.problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	var errs []error
	printed := make(map[any]bool)
	for _, p := range d.problems {
		if key := [2]any{p.line, p.key}; !printed[key] {
			printed[key], errs = true, append(errs, p.error)
		}
	}
	return errors.Join(errs...)
}

// resolved returns the value that an alias names.
func resolved(node *yaml.Node) *yaml.Node {
	for range maxDepth {
		if node == nil || node.Kind != yaml.AliasNode {
			break
		}
		node = node.Alias
	}
	return node
}

func isNull(node *yaml.Node) bool {
	return node == nil || node.Kind == yaml.ScalarNode && node.Tag == "!!null"
}

// get returns the value at p, or nil.
func (d *document) get(p path) *yaml.Node {
	node := d.top
	for _, key := range p {
		switch node = resolved(node); {
		case node == nil:
			return nil
		case node.Kind == yaml.MappingNode:
			node = d.entries(node, nil).values[key]
		default:
			i, err := strconv.Atoi(strings.Trim(key, "[]"))
			if err != nil || i >= len(node.Content) {
				return nil
			}
			node = node.Content[i]
		}
	}
	return node
}

// contains reports whether the file has a value at p. Null is no value.
func (d *document) contains(p path) bool { return !isNull(resolved(d.get(p))) }

// Decode reads a text that has only the program's own keys into the struct that program points
// to, by the rules of Options.Program. Problems begin with the name file. The error has a line
// for each mistake, and wraps quota.ErrInvalid.
func Decode(file string, text []byte, program any) error {
	d := newDocument(file)
	if d.parse(text, "the file is empty") && d.decode(program) {
		d.checkProgram(program)
	}
	return d.err()
}

// checkProgram calls the Check and CheckTogether of a program's struct, if it has them.
func (d *document) checkProgram(program any) {
	mustBe := func(key, right string) { d.mustBe(pathOf(key), right) }
	if p, ok := program.(interface {
		Check(mustBe func(key, right string))
	}); ok {
		p.Check(mustBe)
	}
	if p, ok := program.(interface {
		CheckTogether(mustBe func(key, right string))
	}); ok && len(d.problems) == 0 {
		p.CheckTogether(mustBe)
	}
}

// parse reads the text, and reports whether it is YAML with a value.
func (d *document) parse(text []byte, empty string) bool {
	lines := bytes.Split(text, []byte("\n"))
	if i := slices.IndexFunc(lines, func(line []byte) bool { return !utf8.Valid(line) }); i >= 0 {
		d.add(i+1, nil, "the text is not UTF-8; save it as UTF-8")
		return false
	}
	if i := slices.IndexFunc(lines, hasControl); i >= 0 {
		d.add(i+1, nil, "the line has a control character; write it as an escape such as \\0 in double quotes, or leave it out")
		return false
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		d.add(0, nil, "%v", err)
		return false
	}
	var document, second yaml.Node
	if err := loader.Load(&document); err != nil && !errors.Is(err, io.EOF) {
		d.syntax(lines, err)
		return false
	}
	if err := loader.Load(&second); err == nil {
		d.add(second.Line, nil, "a second document begins here; one file is one configuration")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(lines, err)
	}
	if len(document.Content) == 0 || isNull(document.Content[0]) {
		if len(d.problems) == 0 {
			d.add(0, nil, "%s", empty)
		}
		return false
	}
	d.top = document.Content[0]
	return true
}

// hasControl reports whether a line has a control character that YAML forbids.
func hasControl(line []byte) bool {
	return bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' && c != '\r' || c == 0x7f })
}

var indentedByTab = regexp.MustCompile(`^ *\t`)

// syntax adds an error of the YAML parser.
func (d *document) syntax(lines [][]byte, err error) {
	var single *yaml.LoadError
	if !errors.As(err, &single) {
		d.add(0, nil, "%v", err)
		return
	}
	message := single.Message
	switch n := single.Mark.Line - 1; {
	case n >= 0 && n < len(lines) && indentedByTab.Match(lines[n]):
		message = "the line begins with a tab; indent it by spaces, as YAML asks"
	case strings.Contains(message, "cannot start any token"):
		message += "; write the value in quotes"
	case strings.HasPrefix(message, "unknown anchor"):
		message += "; write the value itself"
	case single.ContextMsg != "" && single.ContextMark.Line > 0:
		message += fmt.Sprintf(", %s that begins in line %d", single.ContextMsg, single.ContextMark.Line)
	}
	d.add(single.Mark.Line, nil, "%s", message)
}
