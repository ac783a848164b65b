package policies

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/quota"
)

// MaxDepth is the most policies from one policy to the last of its parents: a decision
// charges no more.
const MaxDepth = quota.MaxCharges

// Parent is the policy and key that are charged along with a child: see [View.Resolve].
type Parent struct{ Policy, Key string }

// children summarizes the policies under a parent.
type children struct {
	// byHeight counts the policies by height: first those with no policy below them, then
	// those with one level below them, and so on.
	byHeight [MaxDepth - 1]int32

	unit quota.Unit // of all of them
}

// height returns the number of policies from the parent down to the lowest one below it.
func (c *children) height() int {
	if c == nil {
		return 1
	}
	for i, n := range slices.Backward(c.byHeight[:]) {
		if n > 0 {
			return i + 2
		}
	}
	return 1
}

func (c *children) number() (sum int32) {
	for _, n := range c.byHeight {
		sum += n
	}
	return sum
}

// relink notes that p, or nil, replaces the policy in at, the entry of that name: the parent
// may change.
func (e *Edit) relink(name string, at *entry, p *quota.Policy) {
	before, same := "", false
	if at.policy != nil {
		before = at.policy.Parent
		same = p != nil && before == p.Parent && at.policy.Unit == p.Unit
	} else {
		same = p == nil || p.Parent == ""
	}
	if _, noted := e.linked[name]; noted || same && at.below == nil {
		return
	}
	if e.linked == nil {
		e.linked = make(map[string]string)
	}
	e.linked[name] = before
}

// link puts the policies that have changed under their parents. It takes all of them out of
// the tree first, so that the rest is a tree at each step. A policy that can't be put back is
// a mistake.
func (e *Edit) link() {
	for name, parent := range e.linked {
		e.linked[name] = ""
		e.count(parent, e.height(name), 0)
	}
	for name := range e.linked {
		e.Mistake(e.keeps(name))
	}
	for name := range e.linked {
		at := e.at(name)
		if at.policy == nil || at.policy.Parent == "" {
			continue
		}
		if err := e.fits(name, at.policy.Parent); err != nil {
			e.Mistake(err)
			continue
		}
		delete(e.linked, name)
		e.count(at.policy.Parent, 0, at.below.height())
	}
}

// keeps returns why a policy can't be the parent of its children that do not change, or nil.
func (e *Edit) keeps(name string) error {
	switch at := e.at(name); {
	case at.below == nil:
		return nil
	case at.policy == nil:
		return invalid.Errorf("policies: policy %q is removed, and is the parent of %d others; give them another parent, or remove theirs, in the same change", name, at.below.number())
	case !at.policy.Until.IsZero():
		return invalid.Errorf("policies: policy %q has an end, and is the parent of %d others; a parent cannot have an end", name, at.below.number())
	case at.policy.Unit != at.below.unit:
		return invalid.Errorf("policies: policy %q counts %v, and is the parent of %d others that count %v; change them in the same change", name, at.policy.Unit, at.below.number(), at.below.unit)
	}
	return nil
}

// fits returns why a policy can't be put under a parent, or nil.
func (e *Edit) fits(name, parent string) error {
	above := e.at(parent).policy
	if above == nil {
		return invalid.Errorf("policies: policy %q has the parent %q, which the source lacks; a parent is a policy of the same source", name, parent)
	}
	if !above.Until.IsZero() {
		return invalid.Errorf("policies: policy %q has the parent %q, which has an end; a parent cannot have an end", name, parent)
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

// cycle returns the names of a chain that ends with its first name, from the least name on.
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

// parent returns the parent of the policy of that name in the tree, or "".
func (e *Edit) parent(name string) string {
	if parent, ok := e.linked[name]; ok {
		return parent
	}
	if at := e.at(name); at.policy != nil {
		return at.policy.Parent
	}
	return ""
}

// count notes, for the policy of that name and all above it, that the height of a policy below
// it changes: 0 is the height before it is added, and after it is removed.
func (e *Edit) count(name string, from, to int) {
	for name != "" && from != to {
		at := e.at(name)
		var c children
		if at.below != nil {
			c = *at.below
		} else if at.policy != nil {
			c.unit = at.policy.Unit // and the child's: see fits
		}
		before := c.height()
		if from > 0 {
			c.byHeight[from-1]--
		}
		if to > 0 {
			c.byHeight[to-1]++
		}
		at.below = &c
		if c.number() == 0 {
			at.below = nil
		}
		e.put(name, at)
		name, from, to = e.parent(name), before, c.height()
	}
}
