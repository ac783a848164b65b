package config

import (
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Decode reads a text that has only the program's own keys into the struct that program points
// to, by the rules of Options.Program. A field may be a yaml.Node, too, for a value of any
// form. Unlike in a configuration, aliases and merge keys are resolved. Problems begin with
// the name file. The error has a line for each mistake, and wraps quota.ErrInvalid.
func Decode(file string, text []byte, program any) error {
	r := newReader(file)
	top := r.parse(text, "the file is empty")
	if top == nil {
		return r.err()
	}
	if wrong := (&resolver{left: maxNodes, within: make(map[*yaml.Node]bool)}).resolve(top); wrong != nil {
		r.problems = append(r.problems, *wrong)
		return r.err()
	}
	r.read(fieldsOf(reflect.ValueOf(program).Elem()), top)
	r.checkProgram(program)
	return r.err()
}

// checkProgram calls the Check of a program's struct, if it has one. It ignores problems at a
// place that has a problem already, or below a value of the wrong form.
func (r *reader) checkProgram(program any) {
	p, ok := program.(interface {
		Check(mustBe func(key, right string))
	})
	if !ok {
		return
	}
	p.Check(func(path, right string) {
		at, form := r.find(path), yaml.MappingNode
		if strings.HasSuffix(path, "]") {
			form = yaml.SequenceNode
		}
		if !at.said && (!at.up.has() || at.up.node.Kind == form) {
			r.mustBe(at, right)
		}
	})
}

// find returns the place of a path. The keys of the path must be plain words.
func (r *reader) find(path string) *place {
	p := &r.top
	for word := range strings.SplitSeq(strings.ReplaceAll(path, "[", ".["), ".") {
		name := word
		if !strings.HasPrefix(word, "[") {
			name = "." + word
		}
		p = p.to(word, name)
	}
	return p
}

// maxNodes bounds the nodes of a text when its aliases are resolved: a small text can name the
// same values over and over.
const maxNodes = 4 << 20

// resolver resolves aliases and merge keys.
type resolver struct {
	left   int                 // nodes
	within map[*yaml.Node]bool // nodes that are being resolved
}

// resolve replaces aliases with their values, and merge keys with the entries that they name.
// It returns a problem, or nil.
func (r *resolver) resolve(node *yaml.Node) *problem {
	if r.left--; r.left < 0 {
		return &problem{0, fmt.Sprintf("with its aliases resolved, the file has more than %d values; write it without some of the aliases", maxNodes)}
	}
	r.within[node] = true
	defer delete(r.within, node)
	for i, n := range node.Content {
		for alias := n; n.Kind == yaml.AliasNode; n = n.Alias {
			if n.Alias == nil {
				return &problem{n.Line, "an alias names no value"}
			}
			if r.within[n.Alias] {
				return &problem{alias.Line, fmt.Sprintf("the alias *%s is within the value that it names; write the value itself", alias.Value)}
			}
			node.Content[i] = n.Alias
		}
		if wrong := r.resolve(n); wrong != nil {
			return wrong
		}
	}
	if node.Kind == yaml.MappingNode {
		node.Content = merged(node.Content)
	}
	return nil
}

// merged returns the entries of a mapping, and of the mappings that its merge keys name. If
// several have a key, the mapping's own entry counts, or the first one named.
func merged(entries []*yaml.Node) []*yaml.Node {
	var own []*yaml.Node
	var bases []*yaml.Node
	for i := 0; i+1 < len(entries); i += 2 {
		switch key, value := entries[i], entries[i+1]; {
		case key.Kind != yaml.ScalarNode || key.Value != "<<" || !strings.HasSuffix(key.Tag, "merge"):
			own = append(own, key, value)
		case value.Kind == yaml.SequenceNode:
			bases = append(bases, value.Content...)
		default:
			bases = append(bases, value)
		}
	}
	has := make(map[string]bool)
	for i := 0; i < len(own) && len(bases) > 0; i += 2 {
		has[own[i].Value] = true
	}
	for _, base := range bases {
		for i := 0; i+1 < len(base.Content) && base.Kind == yaml.MappingNode; i += 2 {
			if key := base.Content[i]; !has[key.Value] {
				has[key.Value] = true
				own = append(own, key, base.Content[i+1])
			}
		}
	}
	return own
}
