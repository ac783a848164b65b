package policies

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/quota"
)

// MaxDepth is the most policies from one of them to the last of its parents: a decision
// charges no more.
const MaxDepth = quota.MaxCharges

// Parent is what is charged as well when a policy that has a parent is: see [View.Resolve].
type Parent struct{ Policy, Key string }

// heights counts the policies under a parent by their heights: how many have no policy
// below them, how many have one level of them, and so on. So a parent that has others
// below it is given a parent without a look at them.
type heights [MaxDepth - 1]int32

// height returns how many policies there are from the lowest one below the parent to it.
func (h *heights) height() int {
	if h == nil {
		return 1
	}
	for i, n := range slices.Backward(h[:]) {
		if n > 0 {
			return i + 2
		}
	}
	return 1
}

// relink notes that the policy of that name, which at has, gets another parent, if any.
func (e *Edit) relink(name string, at *entry, parent string) {
	before := ""
	if at.policy != nil {
		before = at.policy.Parent
	}
	if _, noted := e.linked[name]; noted || before == parent && at.below == nil {
		return
	}
	if e.linked == nil {
		e.linked = make(map[string]string)
	}
	e.linked[name] = before
}

// link puts the policies that have changed under their parents. All of them are taken out
// of the tree first, so that what is in it is a tree at each step. What cannot be put back
// is a mistake.
func (e *Edit) link() {
	for name, parent := range e.linked {
		e.linked[name] = ""
		e.count(parent, e.height(name), 0)
	}
	for name := range e.linked {
		at := e.at(name)
		if at.policy == nil || at.policy.Parent == "" {
			continue
		}
		if err := e.fits(name, at.policy.Parent); err != nil {
			e.mistake(err)
			continue
		}
		delete(e.linked, name)
		e.count(at.policy.Parent, 0, at.below.height())
	}
	for name := range e.linked {
		at := e.at(name)
		if at.policy != nil || at.below == nil {
			continue
		}
		children := 0
		for _, n := range at.below {
			children += int(n)
		}
		e.mistake(invalid.Errorf("policies: policy %q is removed, and is the parent of %d others; give them another one, or none, in the same change", name, children))
	}
}

// fits returns why a policy cannot be put under a parent, or nil.
func (e *Edit) fits(name, parent string) error {
	above := e.at(parent).policy
	if above == nil {
		return invalid.Errorf("policies: policy %q has the parent %q, which the source lacks; a parent is a policy of the same source", name, parent)
	}
	if unit := e.at(name).policy.Unit; unit != above.Unit {
		return invalid.Errorf("policies: policy %q counts %v, and its parent %q counts %v; both are charged the same cost, so they must count the same", name, unit, parent, above.Unit)
	}
	var all [MaxDepth + 1]string
	chain := append(all[:0], name)
	for at := parent; at != ""; at = e.parent(at) {
		if chain = append(chain, at); at == name {
			return invalid.Errorf("policies: the parents of policy %q are a cycle: %s", slices.Min(chain), cycle(chain))
		}
	}
	if depth := len(chain) - 1 + e.height(name); depth > MaxDepth {
		return invalid.Errorf("policies: %d policies in a line of parents, %s%s; they may be %d", depth, below(e.height(name)-1), strings.Join(chain, ", "), MaxDepth)
	}
	return nil
}

// cycle returns the names of a chain that ends as it begins, from the least one on.
func cycle(chain []string) string {
	ring := chain[1:]
	first := slices.Index(ring, slices.Min(ring))
	ring = append(slices.Clone(ring[first:]), ring[:first+1]...)
	return strings.Join(ring, ", ")
}

func below(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d below ", n)
}

// height returns the height of the policy of that name.
func (e *Edit) height(name string) int { return e.at(name).below.height() }

// parent returns the parent under which the policy of that name is in the tree, or "".
func (e *Edit) parent(name string) string {
	if parent, ok := e.linked[name]; ok {
		return parent
	}
	if at := e.at(name); at.policy != nil {
		return at.policy.Parent
	}
	return ""
}

// count notes, for the policy of that name and all above it, that the height of one below it
// is another one: 0 before it comes, and after it has gone.
func (e *Edit) count(name string, from, to int) {
	for name != "" && from != to {
		at := e.at(name)
		var h heights
		if at.below != nil {
			h = *at.below
		}
		before := h.height()
		if from > 0 {
			h[from-1]--
		}
		if to > 0 {
			h[to-1]++
		}
		at.below = &h
		if h == (heights{}) {
			at.below = nil
		}
		e.put(name, at)
		name, from, to = e.parent(name), before, h.height()
	}
}
