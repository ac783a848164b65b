package config

import (
	"fmt"

	"go.yaml.in/yaml/v4"
)

// place is the place of a value in a file, which may not have the value. It refers to the
// place above it; its path is built only for problems.
type place struct {
	up    *place // nil at the top
	name  string // below up, as a problem shows it: .key, or [0] of a list
	node  *yaml.Node
	below map[string]*place // by their keys, or [0] of a list

	said  bool // the value has a problem itself
	wrong bool // it has one, or a value below it has
}

// at returns the place that keys lead to from p.
func (p *place) at(keys ...string) *place {
	for _, key := range keys {
		p = p.to(key, "."+spelled(key))
	}
	return p
}

// item returns the place of an item of the list at p.
func (p *place) item(i int) *place {
	name := fmt.Sprintf("[%d]", i)
	return p.to(name, name)
}

func (p *place) to(key, name string) *place {
	next := p.below[key]
	if next == nil {
		if p.below == nil {
			p.below = make(map[string]*place)
		}
		next = &place{up: p, name: name}
		p.below[key] = next
	}
	return next
}

// aKey returns the place of a key, which is node, of the mapping at p.
func (p *place) aKey(node *yaml.Node) *place { return &place{up: p, name: ": a key", node: node} }

// has reports whether the file has a value at p. Null is no value.
func (p *place) has() bool { return p.node != nil && !isNull(p.node) }

// String returns the path of p, such as policies.core.limits[0].quota.
func (p *place) String() string {
	switch {
	case p.up == nil:
		return "the file"
	case p.up.up == nil && p.name[0] == '.':
		return p.name[1:]
	}
	return p.up.String() + p.name
}
