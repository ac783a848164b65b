package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/throttler/quota"
)

const (
	maxDepth  = 256     // of the nesting: a problem names all levels
	maxCopies = 400_000 // of values, by aliases and merge keys
)

// shortForm is a value that has another form, too, such as a server that may be its address alone.
// short returns a pointer to what has the form of the node, or nil for the value itself.
type shortForm interface {
	short(d *document, node *yaml.Node) (part any)
}

// checked is a value with a check, which comes after the checks of the values in it.
type checked interface{ check(d *document, p path) }

// decode sets the value that to points to, and adds a problem for each value that is wrong. It
// reports whether it went through the whole file.
//
// The tag must of a field says that it may not be left out, and describes a valid value, unless its
// type does.
func (d *document) decode(to any) bool {
	d.set(d.top, nil, reflect.ValueOf(to).Elem())
	return !d.cut
}

// set sets v to the node at p.
func (d *document) set(node *yaml.Node, p path, v reflect.Value) {
	if node.Kind == yaml.AliasNode {
		if d.decoding[node.Alias] {
			d.misread(node, p, p.String(), errors.New("an alias is in its own value; write the value itself"))
			return
		}
		node = node.Alias
		d.copying++
		defer func() { d.copying-- }()
	}
	if node.Anchor != "" || d.copying > 0 {
		d.decoding[node] = true
		defer delete(d.decoding, node)
	}
	d.form(node, p)
	switch {
	case d.copying > 0 && d.isTooMuch(node):
	case len(p) > maxDepth:
		d.add(node.Line, p, "%v is more than %d levels below the top of the file; leave it out", p, maxDepth)
		d.cut = true
	case isNull(node):
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.set(node, p, v.Elem())
	default:
		d.setValue(node, p, v)
	}
}

// isTooMuch counts a copy of a node, and adds a problem if there are too many.
func (d *document) isTooMuch(node *yaml.Node) bool {
	if d.copies++; d.copies > maxCopies && !d.cut {
		d.add(node.Line, nil, "aliases make more than %d copies; write the values themselves", maxCopies)
		d.cut = true
	}
	return d.cut
}

// form adds a problem for what the YAML package reads in silence.
func (d *document) form(node *yaml.Node, p path) {
	d.untag(node, p)
	if isNull(node) && p.isItem() {
		d.unread[p.String()] = true
		d.add(node.Line, p, "%v is missing; write a value, or leave the item out", p)
	}
}

// untag adds a problem for a tag, which would change what a node is.
func (d *document) untag(node *yaml.Node, p path) {
	if node.Style&yaml.TaggedStyle != 0 {
		d.add(node.Line, p, "%v has the tag %s; leave the tag out", p, node.Tag)
		node.Tag, node.Style = "", node.Style&^yaml.TaggedStyle
	}
}

func (d *document) setValue(node *yaml.Node, p path, v reflect.Value) {
	to := v.Addr().Interface()
	if node.Kind == yaml.MappingNode {
		d.entries(node, p) // the first to ask for them
	}
	var part any
	if s, ok := to.(shortForm); ok {
		part = s.short(d, node)
	}
	text, isText := to.(encoding.TextUnmarshaler)
	switch kind := v.Kind(); {
	case part != nil:
		d.set(node, p, reflect.ValueOf(part).Elem())
	case isText && node.Kind == yaml.ScalarNode:
		if err := text.UnmarshalText([]byte(node.Value)); err != nil {
			d.misread(node, p, p.String(), err)
		}
	case kind == reflect.Map && node.Kind == yaml.MappingNode:
		d.setMap(node, p, v)
	case kind == reflect.Slice && node.Kind == yaml.SequenceNode:
		v.Set(reflect.MakeSlice(v.Type(), len(node.Content), len(node.Content)))
		for i, item := range node.Content {
			d.set(item, p.item(i), v.Index(i))
		}
	case v.Type() == reflect.TypeFor[yaml.Node]():
		v.Set(reflect.ValueOf(*node))
		d.look(node, p)
	case kind == reflect.Struct && node.Kind == yaml.MappingNode && !isText:
		d.setFields(node, p, v)
	case isText || node.Kind != yaml.ScalarNode || !setScalar(node, v):
		d.misread(node, p, p.String(), errors.New("it must be "+rightFor(v)))
		d.look(node, p)
	}
	if c, ok := to.(checked); ok {
		c.check(d, p)
	}
}

// look adds the problems with the form of a node that is not decoded, and of those below it.
func (d *document) look(node *yaml.Node, p path) {
	if node.Kind == yaml.AliasNode || len(p) > maxDepth {
		return
	}
	d.form(node, p)
	for i, item := range node.Content {
		if node.Kind == yaml.SequenceNode {
			d.look(item, p.item(i))
		} else if m := d.entries(node, p); i < len(m.keys) {
			d.look(m.values[m.keys[i].Value], p.child(m.keys[i].Value))
		}
	}
}

func (d *document) setFields(node *yaml.Node, p path, v reflect.Value) {
	fields, m := fieldsOf(v), d.entries(node, p)
	var intended []string // by unknown keys
	for _, key := range m.keys {
		child := p.child(key.Value)
		if i := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value }); i >= 0 {
			d.set(m.values[key.Value], child, fields[i].value)
			continue
		}
		keys := keysOf(v)
		intended = append(intended, Nearest(key.Value, keys))
		d.unread[child.String()] = true
		d.add(key.Line, child, "unknown key %s; %s", spelled(key.Value), didYouMean(key.Value, keys, "the keys here are "+strings.Join(keys, ", ")))
		d.look(m.values[key.Value], child)
	}
	for _, f := range fields {
		child, place := p.child(f.key), cmp.Or(m.values[f.key], node)
		empty := f.value.IsZero() || f.value.Kind() == reflect.Slice && f.value.Len() == 0
		if f.needed && empty && !d.wrong[child.String()] && !slices.Contains(intended, f.key) {
			d.unread[child.String()] = true
			d.addOnce([2]any{node, f.key}, place.Line, child, fmt.Sprintf("%v is %s; it must be %s", child, shown(m.values[f.key]), cmp.Or(f.right, rightFor(f.value))))
		}
	}
}

func (d *document) setMap(node *yaml.Node, p path, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	m := d.entries(node, p)
	for _, word := range m.keys {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		d.set(m.values[word.Value], p.child(word.Value), value)
		if text, ok := key.Addr().Interface().(encoding.TextUnmarshaler); !ok {
			key.SetString(word.Value)
		} else if err := text.UnmarshalText([]byte(word.Value)); err != nil {
			d.misread(word, p, p.String()+": a key", err)
			continue
		}
		v.SetMapIndex(key, value)
	}
}

var wholeNumber = regexp.MustCompile(`^[1-9][0-9]*$`)

// setScalar reports whether v can have the value of a node. YAML would read 010 as 8.
func setScalar(node *yaml.Node, v reflect.Value) bool {
	switch to := v.Addr().Interface().(type) {
	case *time.Duration:
		window, err := quota.ParseWindow(node.Value)
		*to = window
		return err == nil
	case *int64:
		n, err := strconv.ParseInt(node.Value, 10, 64)
		*to = n
		return err == nil && wholeNumber.MatchString(node.Value) && n <= quota.MaxQuota
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(node.Value)
		return true
	case reflect.Struct, reflect.Map, reflect.Slice:
		return false
	default:
		return node.Decode(v.Addr().Interface()) == nil
	}
}

// misread adds an error about a node, which is at p and called name. If it has the form of mustBe,
// the problem has the value, otherwise the error.
func (d *document) misread(node *yaml.Node, p path, name string, err error) {
	if name == p.String() {
		d.unread[name] = true
	}
	text := err.Error()
	right, found := strings.CutPrefix(text, "it must be ")
	if !found {
		_, right, found = strings.Cut(text, fmt.Sprintf(" is %q; it must be ", node.Value))
	}
	if found {
		name, text = name+" is "+shown(node), "; it must be "+right
	} else {
		text = ": " + withoutPackage(err)
	}
	d.addOnce([2]any{node, text}, node.Line, p, name+text)
}

// mapping has the keys of a mapping in their order, then those of its merge keys.
type mapping struct {
	keys   []*yaml.Node
	values map[string]*yaml.Node
	isOpen bool // it is being read
}

// entries returns the content of a mapping. The first call, for which p is its path, adds a problem
// for each key that is repeated, or that is none.
func (d *document) entries(node *yaml.Node, p path) *mapping {
	if m := d.below[node]; m != nil {
		return m
	}
	m := &mapping{values: make(map[string]*yaml.Node), isOpen: true}
	d.below[node] = m
	lines := make(map[string]int)
	var bases []*yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := resolved(node.Content[i]), node.Content[i+1]
		d.untag(key, p)
		if key.Kind != yaml.ScalarNode || isNull(key) || key.Value == "" {
			d.add(key.Line, p, "%v: a key is %s; it must be a word", p, shown(key))
			continue
		}
		switch first, repeated := lines[key.Value]; {
		case repeated:
			d.add(key.Line, p, "%v is set twice, first in line %d", p.child(key.Value), first)
			continue
		case key.Value != "<<":
			m.keys, m.values[key.Value] = append(m.keys, key), value
		case resolved(value).Kind == yaml.SequenceNode:
			bases = resolved(value).Content
		default:
			bases = []*yaml.Node{value}
		}
		lines[key.Value] = key.Line
	}
	for _, base := range bases {
		d.merge(m, resolved(base), p)
	}
	m.isOpen = false
	return m
}

// merge adds to m what it lacks, and base has.
func (d *document) merge(m *mapping, base *yaml.Node, p path) {
	if base.Kind != yaml.MappingNode {
		d.add(base.Line, p, "%v.<< is %s; it must be a mapping, or a list of them", p, shown(base))
		return
	}
	from := d.entries(base, p)
	if from.isOpen {
		d.add(base.Line, p, "%v.<<: an alias is in its own value; write the value itself", p)
	}
	for _, key := range from.keys {
		value := from.values[key.Value]
		if value.Kind != yaml.AliasNode {
			value = &yaml.Node{Kind: yaml.AliasNode, Alias: value, Line: value.Line}
		}
		if m.values[key.Value] == nil && !d.isTooMuch(key) {
			m.keys, m.values[key.Value] = append(m.keys, key), value
		}
	}
}

// field is a field of a struct, and its key in a file.
type field struct {
	key    string
	needed bool
	right  string // what the tag must says
	value  reflect.Value
}

// fieldsOf returns the fields of a struct that a file sets, in their order.
func fieldsOf(v reflect.Value) (fields []field) {
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		key, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		right, needed := f.Tag.Lookup("must")
		for option == "inline" && (value.Kind() == reflect.Pointer || value.Kind() == reflect.Interface) {
			value = value.Elem()
		}
		switch {
		case option == "inline" && value.IsValid():
			fields = append(fields, fieldsOf(value)...)
		case option != "inline" && f.IsExported() && key != "-":
			fields = append(fields, field{cmp.Or(key, strings.ToLower(f.Name)), needed, right, value})
		}
	}
	return fields
}

func keysOf(v reflect.Value) (keys []string) {
	for _, f := range fieldsOf(v) {
		keys = append(keys, f.key)
	}
	return keys
}

// rightFor describes a valid value of the type of v.
func rightFor(v reflect.Value) string {
	t := v.Type()
	switch to := reflect.New(t).Interface().(type) {
	case encoding.TextUnmarshaler:
		if err := to.UnmarshalText(nil); err != nil {
			if _, right, ok := strings.Cut(err.Error(), "it must be "); ok {
				return right
			}
		}
		return "text"
	case *time.Duration:
		return "a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d"
	case *int64:
		return fmt.Sprintf("a whole number from 1 to %d (2^53), in decimal digits, such as 60", int64(quota.MaxQuota))
	}
	switch t.Kind() {
	case reflect.Struct:
		return "a mapping with " + strings.Join(keysOf(v), ", ")
	case reflect.Map:
		return "a mapping, and each value " + rightFor(reflect.New(t.Elem()).Elem())
	case reflect.Slice:
		item := rightFor(reflect.New(t.Elem()).Elem())
		if keys, ok := strings.CutPrefix(item, "a mapping with "); ok {
			return "a list of mappings with " + keys
		}
		return "a list, and each item " + item
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	default:
		return "a whole number, 0 or more"
	}
}
