package config

import (
	"cmp"
	"encoding"
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

// shortened is a value with a short form, such as an address alone for a server.
type shortened interface {
	// long returns the long form of node, or node if it has that form.
	long(node *yaml.Node) *yaml.Node
}

// checked is a value that is checked, or completed, when it has been decoded.
type checked interface {
	check(r *reader, p *place)
}

// decode sets v to node, the value at p. A type that has UnmarshalText takes a scalar, a
// struct a mapping with its fields' keys, a map any mapping, and a slice a list. A pointer is
// set to a new value. If node has another form, decode adds a problem; right describes a valid
// value, and may be empty. Null is the same as leaving a value out. decode refuses features of
// YAML that a configuration doesn't need: an alias can make a small file a huge one, and a tag
// changes the meaning of a value.
func (r *reader) decode(v reflect.Value, node *yaml.Node, p *place, right string) {
	p.node = node
	r.depth++
	defer func() { r.depth-- }()
	if !r.plain(node, p) || isNull(node) {
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	to := v.Addr().Interface()
	if s, ok := to.(shortened); ok {
		node = s.long(node)
	}
	switch t := to.(type) {
	case *yaml.Node:
		*t = *node
		return
	case *file:
		t.read(r, node, p, right)
		return
	case encoding.TextUnmarshaler:
		if node.Kind == yaml.ScalarNode || v.Kind() == reflect.String || v.Kind() == reflect.Uint8 {
			r.text(t, node, p, right)
			return
		}
	}
	if c, ok := to.(checked); r.value(v, node, p, right) && ok {
		c.check(r, p)
	}
}

// value sets v to the value of node. It reports whether node has the right form.
func (r *reader) value(v reflect.Value, node *yaml.Node, p *place, right string) bool {
	kind := v.Kind()
	if kind == reflect.Struct {
		return r.mapping(fieldsOf(v), node, p, right)
	}
	if kind == reflect.Map {
		return r.dictionary(v, node, p, right)
	}
	if kind == reflect.Slice {
		return r.list(v, node, p, right)
	}
	if must := setScalar(v, node.Value, right); must != "" { // Value is "" if node is not a scalar
		r.mustBe(p, must)
		return false
	}
	return true
}

// dictionary sets the map v to the entries of node. It reports whether node is a mapping.
func (r *reader) dictionary(v reflect.Value, node *yaml.Node, p *place, right string) bool {
	if node.Kind != yaml.MappingNode {
		r.mustBe(p, cmp.Or(right, "a mapping"))
		return false
	}
	v.Set(reflect.MakeMap(v.Type()))
	r.entries(node, p, func(key string, at, value *yaml.Node) {
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		r.decode(k, at, p.aKey(at), "")
		r.decode(e, value, p.at(key), "")
		v.SetMapIndex(k, e)
	})
	return true
}

// list sets the slice v to the items of node. It reports whether node is a list.
func (r *reader) list(v reflect.Value, node *yaml.Node, p *place, right string) bool {
	if node.Kind != yaml.SequenceNode {
		r.mustBe(p, cmp.Or(right, "a list"))
		return false
	}
	v.Set(reflect.MakeSlice(v.Type(), len(node.Content), len(node.Content)))
	for i, n := range node.Content {
		r.decode(v.Index(i), n, p.item(i), "")
	}
	return true
}

// plain reports whether a node is neither an alias nor tagged, nor too deep.
func (r *reader) plain(node *yaml.Node, p *place) bool {
	switch {
	case node.Kind == yaml.AliasNode:
		r.problem(p, "%v is the alias *%s; write the value itself", p, node.Value)
	case node.Style&yaml.TaggedStyle != 0:
		r.problem(p, "%v has the tag %s; leave the tag out", p, node.Tag)
	case r.depth > maxDepth:
		r.problem(p, "%v is more than %d levels below the top of the file; leave it out", p, maxDepth)
	default:
		return true
	}
	return false
}

// text sets t to the text of node. If t's error begins with "it must be", the problem has
// the path and the value, otherwise the path and the error.
func (r *reader) text(t encoding.TextUnmarshaler, node *yaml.Node, p *place, right string) {
	err := t.UnmarshalText([]byte(node.Value)) // "" if node is not a scalar
	if err == nil && node.Kind == yaml.ScalarNode {
		return
	}
	if err == nil { // t accepts ""
		r.mustBe(p, cmp.Or(right, "text"))
		return
	}
	if is, ok := strings.CutPrefix(err.Error(), "it must be "); ok {
		right = cmp.Or(right, is)
	}
	if right != "" {
		r.mustBe(p, right)
		return
	}
	r.problem(p, "%v: %s", p, withoutPackage(err))
}

// withoutPackage returns the text of an error of weir without the name of its package.
func withoutPackage(err error) string {
	text := err.Error()
	if name, rest, ok := strings.Cut(text, ": "); ok && !strings.Contains(name, " ") {
		return rest
	}
	return text
}

// A field is a field of a struct, or of a struct embedded in it, that has a key in a file.
type field struct {
	key      string // of the tag, or the name of the field in snake_case; the tag - means no key
	right    string // the tag `is`, which describes a valid value
	required bool   // by the tag
	value    reflect.Value
}

func fieldsOf(v reflect.Value) (all []field) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			all = append(all, fieldsOf(v.Field(i))...)
		} else if f.IsExported() && f.Tag.Get("yaml") != "-" {
			key, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			all = append(all, field{cmp.Or(key, snakeCase(f.Name)), f.Tag.Get("is"), option == "required", v.Field(i)})
		}
	}
	return all
}

func snakeCase(name string) string {
	var s strings.Builder
	for i, c := range name {
		if i > 0 && c >= 'A' && c <= 'Z' {
			s.WriteByte('_')
		}
		s.WriteString(strings.ToLower(string(c)))
	}
	return s.String()
}

// read sets the fields to the values at the top of a file.
func (r *reader) read(fields []field, node *yaml.Node) {
	r.top.node = node
	if r.plain(node, &r.top) {
		r.mapping(fields, node, &r.top, "")
	}
}

// mapping sets the fields to the values of node, and adds a problem for each other key. It
// reports whether node is a mapping.
func (r *reader) mapping(fields []field, node *yaml.Node, p *place, right string) bool {
	var keys []string
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	if node.Kind != yaml.MappingNode {
		r.mustBe(p, cmp.Or(right, "a mapping with "+strings.Join(keys, ", ")))
		return false
	}
	r.entries(node, p, func(key string, at, value *yaml.Node) {
		if i := slices.Index(keys, key); i >= 0 {
			r.decode(fields[i].value, value, p.at(key), fields[i].right)
			return
		}
		r.problemIn(at.Line, p.at(key), "unknown key %s; %s", spelled(key), didYouMean(key, keys, "the keys here are "+strings.Join(keys, ", ")))
	})
	for _, f := range fields {
		at := p.at(f.key)
		switch {
		case !f.required:
		case !at.has(): // no value is the same as an empty one
			r.decode(f.value, &yaml.Node{Kind: yaml.ScalarNode, Line: node.Line}, at, f.right)
		case f.value.Kind() == reflect.Slice && f.value.Len() == 0 && !at.wrong:
			r.mustBe(at, f.right)
		}
	}
	return true
}

// entries calls do with the entries of a mapping, in their order.
func (r *reader) entries(node *yaml.Node, p *place, do func(key string, at, value *yaml.Node)) {
	lines := make(map[string]int)
	for i := 0; i+1 < len(node.Content); i += 2 {
		at := node.Content[i]
		aKey := p.aKey(at)
		if !r.plain(at, aKey) {
			continue
		}
		if at.Kind != yaml.ScalarNode || isNull(at) || at.Value == "" {
			r.mustBe(aKey, "a word")
			continue
		}
		if first, again := lines[at.Value]; again {
			r.problemIn(at.Line, p.at(at.Value), "%v is set twice, first in line %d", p.at(at.Value), first)
			continue
		}
		lines[at.Value] = at.Line
		do(at.Value, at, node.Content[i+1])
	}
}

var (
	wholeNumber  = regexp.MustCompile(`^[1-9][0-9]*$`)
	durationType = reflect.TypeFor[time.Duration]()
)

// setScalar sets v to the value of text, or describes a valid value. It parses numbers itself,
// because YAML would make 4 of 4.5, and 8 of 010.
func setScalar(v reflect.Value, text, right string) (must string) {
	switch {
	case v.Type() == durationType:
		d, err := quota.ParseWindow(text)
		if err != nil {
			return "a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d"
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.String:
		if text == "" {
			return cmp.Or(right, "text")
		}
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		if text != "true" && text != "false" {
			return "true or false"
		}
		v.SetBool(text == "true")
	case v.Kind() == reflect.Int64, v.Kind() == reflect.Uint64:
		if !wholeNumber.MatchString(text) {
			return "a whole number, 1 or more, in decimal digits, such as 60"
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n > quota.MaxQuota {
			return fmt.Sprintf("at most %d (2^53)", int64(quota.MaxQuota))
		}
		v.Set(reflect.ValueOf(n).Convert(v.Type()))
	default:
		panic(fmt.Sprintf("config: a %v is no value of a configuration", v.Type()))
	}
	return ""
}
