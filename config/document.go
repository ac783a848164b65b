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
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/internal/invalid"
)

const (
	maxBytes = 8 << 20 // of a file: more than 100,000 policies
	maxDepth = 256     // of the nesting: a problem names all levels
)

// document is a file in YAML, and the problems that were found in it. The YAML package decodes
// it into structs, and collects the errors of their fields.
type document struct {
	name     string
	top      *yaml.Node
	places   []place // of all nodes, by their Columns
	tooDeep  bool
	below    map[*yaml.Node]map[string]*yaml.Node // the values of mappings, by their keys
	problems []error
	lines    []int           // of problems; 0 if it concerns the whole file
	wrong    map[string]bool // paths of values with a problem, and the paths above them
	unread   map[string]bool // paths of values that could not be decoded
	getenv   func(string) string
}

func newDocument(name string) *document {
	return &document{name: name, below: make(map[*yaml.Node]map[string]*yaml.Node), wrong: make(map[string]bool), unread: make(map[string]bool), getenv: os.Getenv}
}

// place is the place of a node: below the node with the Column up, at a key or an index.
type place struct {
	node   *yaml.Node
	parent int
	key    *yaml.Node // node itself, if it is a key
	index  int
}

// path leads from the top of a file to a value, which the file may not have. It consists of
// keys, and of [0] for the items of lists.
type path []string

func (p path) child(keys ...string) path { return append(slices.Clip(p), keys...) }

func (p path) item(i int) path { return p.child(fmt.Sprintf("[%d]", i)) }

var plainKey = regexp.MustCompile(`^([\w-]{1,80}|<<|\[\d+\])$`)

// String returns the path as problems show it, such as policies.core.limits[0].quota.
func (p path) String() string {
	var s strings.Builder
	for i, key := range p {
		if i > 0 && key[:min(1, len(key))] != "[" {
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
	for i := len(p); i >= 0 && !d.wrong[p[:i].String()]; i-- {
		d.wrong[p[:i].String()] = true
	}
	place := d.name
	if line > 0 {
		place = fmt.Sprintf("%s:%d", d.name, line)
	}
	d.problems, d.lines = append(d.problems, invalid.Errorf("%s: %s", place, fmt.Sprintf(format, args...))), append(d.lines, line)
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
	order := make([]int, len(d.problems))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d.lines[a], d.lines[b]) })
	var errs []error
	printed := make(map[string]bool) // an alias repeats the problems of its value
	for _, i := range order {
		if text := d.problems[i].Error(); !printed[text] {
			printed[text], errs = true, append(errs, d.problems[i])
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
			node = d.entries(node)[key]
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

// entries returns the values of a mapping by their keys, including the values of merge keys.
func (d *document) entries(node *yaml.Node) map[string]*yaml.Node {
	if children := d.below[node]; children != nil {
		return children
	}
	children := make(map[string]*yaml.Node)
	d.below[node] = children
	for i := 0; i+1 < len(node.Content); i += 2 {
		children[node.Content[i].Value] = node.Content[i+1]
	}
	bases := []*yaml.Node{children["<<"]}
	if list := resolved(children["<<"]); list != nil && list.Kind == yaml.SequenceNode {
		bases = list.Content
	}
	for _, base := range bases {
		if base = resolved(base); base == nil || base.Kind != yaml.MappingNode {
			continue
		}
		for key, value := range d.entries(base) {
			if children[key] == nil {
				children[key] = value
			}
		}
	}
	return children
}

// pathTo returns the path of a place: for a key, the path of the mapping that has it.
func (d *document) pathTo(column int) path {
	p := d.places[column]
	switch {
	case column == 0:
		return nil
	case p.node == p.key:
		return d.pathTo(p.parent)
	case p.key != nil:
		return d.pathTo(p.parent).child(p.key.Value)
	}
	return d.pathTo(p.parent).item(p.index)
}

// number sets the Column of a node and of the nodes below it to the index of their places, so
// that an error of the YAML package leads to the place. It adds a problem for what the package
// would read in silence: a value that is repeated, or that isn't there, or that a tag changes.
func (d *document) number(p place, depth int) {
	node := p.node
	node.Column = len(d.places)
	d.places = append(d.places, p)
	nodePath := func() path { return d.pathTo(node.Column) }
	if node.Style&yaml.TaggedStyle != 0 {
		d.add(node.Line, nodePath(), "%v has the tag %s; leave the tag out", nodePath(), node.Tag)
		node.Tag, node.Style = "", node.Style&^yaml.TaggedStyle
	}
	switch {
	case depth > maxDepth:
		d.add(node.Line, nodePath(), "%v is more than %d levels below the top of the file; leave it out", nodePath(), maxDepth)
		d.tooDeep = true
	case node.Kind == yaml.SequenceNode:
		for i, item := range node.Content {
			if isNull(item) {
				d.unread[nodePath().String()] = true
				d.add(item.Line, nodePath(), "%v is missing; write a value, or leave the item out", nodePath().item(i))
			}
			d.number(place{item, node.Column, nil, i}, depth+1)
		}
	case node.Kind == yaml.MappingNode:
		var entries []*yaml.Node
		lines := make(map[string]int)
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			d.number(place{key, node.Column, key, 0}, depth+1)
			d.number(place{value, node.Column, key, 0}, depth+1)
			if key = resolved(key); key.Kind != yaml.ScalarNode || isNull(key) || key.Value == "" {
				d.add(key.Line, nodePath(), "%v: a key is %s; it must be a word", nodePath(), shown(key))
			} else if first, repeated := lines[key.Value]; repeated {
				d.add(key.Line, nodePath(), "%v is set twice, first in line %d", nodePath().child(key.Value), first)
			} else {
				lines[key.Value], entries = key.Line, append(entries, key, value)
			}
		}
		node.Content = entries
	}
}

var (
	unknownField = regexp.MustCompile(`(?s)^field (.*) not found in type (.*)$`)
	wrongKind    = regexp.MustCompile(`(?s)^cannot construct .* into (.*?)( \(TextUnmarshaler\))?$`)
)

// load sets the value that to points to, a struct with its keys or another type. The error says
// what would be right.
func load(node *yaml.Node, to any) error {
	err := node.Load(to, yaml.WithKnownFields(), yaml.WithUniqueKeys(false)) // number finds keys that are repeated
	var list *yaml.LoadErrors
	var single *yaml.LoadError
	if !errors.As(err, &list) {
		if !errors.As(err, &single) {
			return err
		}
		text := strings.TrimPrefix(single.Message, "merge-key: ") + "; write the value itself"
		return yaml.NewLoadError(single.Stage, text, single.Mark, nil)
	}
	types := make(map[string]reflect.Type)
	collect(reflect.TypeOf(to).Elem(), types)
	for i, e := range list.Errors {
		if match := unknownField.FindStringSubmatch(e.Message); match != nil && types[match[2]] != nil {
			keys := keysOf(types[match[2]])
			text := "unknown key " + spelled(match[1]) + "; " + didYouMean(match[1], keys, "the keys here are "+strings.Join(keys, ", "))
			list.Errors[i] = yaml.NewLoadError(e.Stage, text, e.Mark, nil)
		} else if match := wrongKind.FindStringSubmatch(e.Message); match != nil && types[match[1]] != nil {
			list.Errors[i] = yaml.NewLoadError(e.Stage, "it must be "+rightFor(types[match[1]]), e.Mark, nil)
		}
	}
	return list
}

// decode sets the value that to points to, and adds the errors that the YAML package collects.
// It reports whether the package went through the whole file.
func (d *document) decode(to any) bool {
	err := load(d.top, to)
	var list *yaml.LoadErrors
	var single *yaml.LoadError
	switch {
	case err == nil:
	case errors.As(err, &list):
		for _, e := range list.Errors {
			d.misread(e)
		}
	case errors.As(err, &single):
		d.add(single.Mark.Line, nil, "%s", single.Message)
		return false
	default:
		d.add(0, nil, "%v", err)
		return false
	}
	return true
}

// misread adds an error of load. If it has the form of mustBe, the problem has the path and the
// value, otherwise the path and the error.
func (d *document) misread(e *yaml.LoadError) {
	if inner := new(yaml.LoadError); errors.As(e.Unwrap(), &inner) {
		e = inner // it ended the decoding of a value by its UnmarshalYAML
	}
	place := d.places[e.Mark.Column]
	p := d.pathTo(e.Mark.Column)
	name := p.String()
	switch {
	case place.key == place.node && strings.HasPrefix(e.Message, "unknown key "):
		p = p.child(place.key.Value)
		d.unread[p.String()] = true
		d.add(e.Mark.Line, p, "%s", e.Message)
		return
	case place.key == place.node && place.key != nil:
		name += ": a key"
	default:
		if d.unread[name] = true; len(p) > 0 && place.key == nil {
			d.unread[p[:len(p)-1].String()] = true // the list lacks the item
		}
	}
	right, found := strings.CutPrefix(e.Message, "it must be ")
	if !found {
		_, right, found = strings.Cut(e.Message, fmt.Sprintf(" is %q; it must be ", place.node.Value))
	}
	if found {
		d.add(e.Mark.Line, p, "%s is %s; it must be %s", name, shown(place.node), right)
	} else {
		d.add(e.Mark.Line, p, "%s: %s", name, withoutPackage(e))
	}
}

// withoutPackage returns the text of an error of weir without the name of its package.
func withoutPackage(err error) string {
	text := err.Error()
	if e := new(yaml.LoadError); errors.As(err, &e) {
		text = e.Message
	}
	if name, tail, ok := strings.Cut(text, ": "); ok && !strings.Contains(name, " ") {
		return tail
	}
	return text
}

// collect adds a type, and the types that values of it are made of, by their names.
func collect(t reflect.Type, types map[string]reflect.Type) {
	if types[t.String()] != nil {
		return
	}
	types[t.String()] = t
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		collect(t.Elem(), types)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("yaml") != "-" && (f.IsExported() || f.Anonymous) {
				collect(f.Type, types)
			}
		}
	default:
	}
}

// keysOf returns the keys of a struct, in the order of its fields.
func keysOf(t reflect.Type) (keys []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if key, option, _ := strings.Cut(f.Tag.Get("yaml"), ","); option == "inline" {
			keys = append(keys, keysOf(f.Type)...)
		} else if f.IsExported() && key != "-" {
			keys = append(keys, cmp.Or(key, strings.ToLower(f.Name)))
		}
	}
	return keys
}

// rightFor describes a valid value of a type.
func rightFor(t reflect.Type) string {
	switch u, ok := reflect.New(t).Interface().(interface{ UnmarshalText([]byte) error }); {
	case ok:
		if err := u.UnmarshalText(nil); err != nil {
			if _, right, ok := strings.Cut(err.Error(), "it must be "); ok {
				return right
			}
		}
		return "text"
	case t.Kind() == reflect.Struct:
		return "a mapping with " + strings.Join(keysOf(t), ", ")
	case t.Kind() == reflect.Map:
		return "a mapping, and each value " + rightFor(t.Elem())
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && len(keysOf(t.Elem())) > 0:
		return "a list of mappings with " + strings.Join(keysOf(t.Elem()), ", ")
	case t.Kind() == reflect.Slice:
		return "a list, and each item " + rightFor(t.Elem())
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "text"
	}
	return "a whole number, 0 or more"
}

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

func (f *file) UnmarshalText(text []byte) error {
	if f.name = string(text); f.name == "" {
		return errors.New("it must be the name of a file")
	}
	return nil
}

// read reads the file at p, if there is one.
func (d *document) read(f *file, p path, right string) {
	if f.name == "" {
		return
	}
	if !filepath.IsAbs(f.name) {
		f.name = filepath.Join(filepath.Dir(d.name), f.name)
	}
	var err error
	if f.content, err = readFile(f.name); err != nil {
		d.problem(p, "%v is %s: %v; it must be %s", p, shown(d.get(p)), err, right)
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
	d.number(place{node: d.top}, 0)
	return !d.tooDeep
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
