package policies

import (
	"fmt"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/quota"
)

// Edit is a change of a source in progress: see [Source.Edit].
type Edit struct {
	content
	owner    *owner
	changed  map[string]*quota.Policy // what the policies were that change and have parents or children
	found    []func(*found)           // changes to the overrides that the source has found
	errs     []error
	mistakes int
}

// maxMistakes is the most mistakes that an error lists.
const maxMistakes = 20

// Mistake notes that the change's input is wrong, unless err is nil: the change then doesn't
// come into force. The error should wrap quota.ErrInvalid.
func (e *Edit) Mistake(err error) {
	if err == nil {
		return
	}
	if e.mistakes++; e.mistakes <= maxMistakes {
		e.errs = append(e.errs, err)
	}
}

// Content is all policies and overrides of a source.
type Content struct {
	Policies  []*quota.Policy `json:"policies"`
	Overrides []Override      `json:"overrides"`
}

// Replace makes c the whole content of the source. Two policies of one name, and two overrides
// for one policy and key, are a mistake.
func (e *Edit) Replace(c Content) {
	e.Clear()
	for _, p := range c.Policies {
		before := e.policies
		if err := e.set(p); err != nil {
			e.Mistake(err)
		} else if e.policies == before {
			e.Mistake(invalid.Errorf("policies: there are two policies %q; a name has one", p.Name))
		}
	}
	for i, o := range c.Overrides {
		before := e.overrides
		if err := e.override(o); err != nil {
			e.Mistake(fmt.Errorf("override %d: %w", i, err))
		} else if e.overrides == before {
			e.Mistake(invalid.Errorf("policies: override %d, of policy %q, is for the same key as an earlier one; a key has one", i, o.Policy))
		}
	}
}

// Clear removes all policies, overrides and plans.
func (e *Edit) Clear() { e.names, e.policies, e.overrides, e.changed = nil, 0, 0, nil }

// SetVersion makes n the version of the source.
func (e *Edit) SetVersion(n int64) { e.version = n }

// Set adds p, or replaces the policy of its name with it. p must not be changed afterwards.
func (e *Edit) Set(p *quota.Policy) { e.Mistake(e.set(p)) }

func (e *Edit) set(p *quota.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	found := e.find(p.Name)
	e.relink(p.Name, &found, p)
	if found.policy == nil {
		e.policies++
	}
	found.policy = p
	e.put(p.Name, found)
	return nil
}

// Remove removes the policy of that name, if there is one. Charges under it then use the
// limits that the program gives it, and its overrides, which stay. A policy that is the
// parent of others can't be removed.
func (e *Edit) Remove(name string) {
	found := e.find(name)
	if found.policy == nil {
		return
	}
	e.policies--
	e.relink(name, &found, nil)
	found.policy = nil
	e.put(name, found)
}

// Override adds o, or replaces the override for its policy and key with it.
func (e *Edit) Override(o Override) { e.Mistake(e.override(o)) }

func (e *Edit) override(o Override) error {
	prepared, err := o.prepare()
	if err != nil {
		return err
	}
	found := e.find(o.Policy)
	if found.overrides.get(o.Key) == nil {
		e.overrides++
	}
	found.overrides = found.overrides.put(e.owner, o.Key, prepared)
	e.put(o.Policy, found)
	return nil
}

// RemoveOverride removes the override for key, if there is one.
func (e *Edit) RemoveOverride(policy, key string) {
	found := e.find(policy)
	if found.overrides.get(key) == nil {
		return
	}
	e.overrides--
	found.overrides = found.overrides.remove(e.owner, key)
	e.put(policy, found)
}

// Find sets whether the source may find overrides of policy that it does not hold: see
// [SourceOptions].
func (e *Edit) Find(policy string, find bool) {
	found := e.find(policy)
	if find && e.source.found == nil {
		e.Mistake(invalid.Errorf("policies: source %q cannot find overrides of policy %q; give it SourceOptions.Find", e.source.name, policy))
		return
	}
	found.find = find
	e.put(policy, found)
}

// Learn replaces the override that the source remembers for a policy and key with o, which may
// be nil. It does nothing if the source doesn't remember the pair: see [SourceOptions].
func (e *Edit) Learn(policy, key string, o *Override) {
	if o != nil {
		var err error
		if o, err = o.prepare(); err != nil {
			e.Mistake(err)
			return
		}
	}
	e.found = append(e.found, func(f *found) { f.learn(pairOf(policy, key), o) })
}

// FindAllAgain forgets all that the source has found.
func (e *Edit) FindAllAgain() { e.found = append(e.found, (*found).forget) }

// find returns a copy of the source's entry for a policy's name.
func (e *Edit) find(name string) entry {
	if found := e.names.get(name); found != nil {
		return *found
	}
	return entry{}
}

// put makes changed the source's entry for a policy's name.
func (e *Edit) put(name string, changed entry) {
	if changed.policy == nil && changed.overrides == nil && changed.children == 0 && !changed.find && changed.plan == nil {
		e.names = e.names.remove(e.owner, name)
		return
	}
	e.names = e.names.put(e.owner, name, &changed)
}
