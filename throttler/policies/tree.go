package policies

import (
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/quota"
)

// Parent is the policy and key that are charged along with a child: see [View.Resolve].
//
// A policy may name a parent: another policy of its source, and a key under that policy. A
// charge under the policy is made under the parent, too, in the same decision, with the same
// cost. So a bucket has a quota, and its organization has one for all of its buckets:
//
//	e.Set(&throttler.Policy{Name: "orgs", Limits: …})
//	e.Set(&throttler.Policy{Name: "bucket-7", Limits: …, Parent: "orgs", ParentKey: "acme"})
//
// If one policy serves all buckets, and each bucket is a key, an override gives the key its
// ParentKey. Either way, a bucket that moves to another organization keeps its count, because
// the count is found by the bucket's name alone.
//
// A parent's charge is like one that the program makes: its partition is the parent's key,
// overrides for that key apply, and it charges the parent's parent. If the program charges
// the same count itself, both charges add up.
//
// A change that makes parents a cycle, or that removes a parent, is a mistake. A decision makes
// at most quota.MaxCharges charges: under a longer line of parents, it is an error.
type Parent struct{ Policy, Key string }

// relink notes that p, or nil, replaces the policy in changed, the entry of that name, if either
// has a parent or children.
func (e *Edit) relink(name string, changed *entry, p *quota.Policy) {
	old := changed.policy
	if _, noted := e.changed[name]; noted || changed.children == 0 && parentName(old) == "" && parentName(p) == "" {
		return
	}
	if e.changed == nil {
		e.changed = make(map[string]*quota.Policy)
	}
	e.changed[name] = old
}

// parentName returns the name of p's parent, or "". p may be nil.
func parentName(p *quota.Policy) string {
	if p == nil {
		return ""
	}
	return p.Parent
}

// link counts the children of the parents of changed policies, and notes the mistakes.
func (e *Edit) link() {
	for _, old := range e.changed {
		e.count(parentName(old), -1)
	}
	for name, old := range e.changed {
		if found := e.find(name); found.children > 0 {
			e.Mistake(keeps(name, old, &found))
		}
	}
	for name := range e.changed {
		if p := e.find(name).policy; parentName(p) != "" {
			e.Mistake(e.fits(p))
			e.count(p.Parent, 1)
		}
	}
	visited := make(map[string]string) // policies that a walk came to, and where the walk began
	for name := range e.changed {
		if e.find(name).children > 0 { // others are in no cycle
			e.Mistake(e.walk(name, visited))
		}
	}
}

// walk goes up from the policy of that name, and returns an error if it comes to a cycle that
// no earlier walk came to.
func (e *Edit) walk(name string, visited map[string]string) error {
	var line []string
	for node := name; node != ""; node = parentName(e.find(node).policy) {
		if first, ok := visited[node]; ok {
			if first != name {
				return nil
			}
			ring := line[slices.Index(line, node):]
			least := slices.Index(ring, slices.Min(ring))
			ring = append(slices.Clone(ring[least:]), ring[:least+1]...)
			return invalid.Errorf("policies: the parents of policy %q are a cycle: %s", ring[0], strings.Join(ring, ", "))
		}
		visited[node] = name
		line = append(line, node)
	}
	return nil
}

// count adds n to the number of children of the policy of that name, unless it is empty.
func (e *Edit) count(name string, n int32) {
	if name == "" {
		return
	}
	found := e.find(name)
	found.children += n
	e.put(name, found)
}

// keeps returns why the policy in changed can't be the parent of its children that do not change,
// or nil. It was another policy before.
func keeps(name string, old *quota.Policy, changed *entry) error {
	switch p := changed.policy; {
	case p == nil:
		return invalid.Errorf("policies: policy %q is removed, and is the parent of %d others; give them another parent, or remove theirs, in the same change", name, changed.children)
	case !p.Until.IsZero():
		return invalid.Errorf("policies: policy %q has an end, and is the parent of %d others; a parent cannot have an end", name, changed.children)
	case p.Unit != old.Unit:
		return invalid.Errorf("policies: policy %q counts %v, and is the parent of %d others that count %v; change them in the same change", name, p.Unit, changed.children, old.Unit)
	}
	return nil
}

// fits returns why p can't be under its parent, or nil.
func (e *Edit) fits(p *quota.Policy) error {
	parent := e.find(p.Parent).policy
	switch {
	case parent == nil:
		return invalid.Errorf("policies: policy %q has the parent %q, which the source lacks; a parent is a policy of the same source", p.Name, p.Parent)
	case !parent.Until.IsZero():
		return invalid.Errorf("policies: policy %q has the parent %q, which has an end; a parent cannot have an end", p.Name, p.Parent)
	case p.Unit != parent.Unit:
		return invalid.Errorf("policies: policy %q counts %v, and its parent %q counts %v; both are charged the same cost, so they must count the same", p.Name, p.Unit, p.Parent, parent.Unit)
	}
	return nil
}
