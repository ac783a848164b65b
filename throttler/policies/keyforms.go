package policies

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/quota"
)

// KeyForm is a form of keys.
type KeyForm struct {
	Kind string                // the beginning of the keys, such as "subject:"
	Has  func(key string) bool // reports whether a request may have key
}

// keyForms are the forms of the keys that requests have under the policies of a throttler.
type keyForms struct {
	declared atomic.Bool
	policies map[string]*policyForms // guarded by the mutex of Names
	checked  atomic.Pointer[View]    // whose overrides were checked

	misspelled map[string]bool // names that were warned of; guarded, too
}

// policyForms are the forms of the keys under a policy.
type policyForms struct {
	unknown         bool // there may be any keys
	within, outside bool // some are within another key, some are not
	forms           []KeyForm
	warned          bool
}

// maxChecked bounds the overrides of a policy that are checked after a change.
const maxChecked = 1000

// shared is the key of requests without a key.
const shared = "unknown:"

// DeclareKeys adds forms to those of the keys that requests have under a policy, or any key if
// there are none. within reports whether they are counted within another key.
func (n *Names) DeclareKeys(policy string, within bool, forms ...KeyForm) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keys.policies == nil {
		n.keys.policies = make(map[string]*policyForms)
	}
	p := n.keys.policies[policy]
	if p == nil {
		p = new(policyForms)
		n.keys.policies[policy] = p
	}
	p.unknown = p.unknown || len(forms) == 0
	p.within, p.outside = p.within || within, p.outside || !within
	for _, f := range forms {
		if !slices.ContainsFunc(p.forms, func(o KeyForm) bool { return o.Kind == f.Kind }) {
			p.forms = append(p.forms, f)
		}
	}
	n.keys.checked.Store(nil)
	n.keys.declared.Store(true)
}

// WrongKey returns what is wrong with the key of c, which no request has, and what would be right.
// It returns "" if a request may have it, nothing is known of its policy, or WrongKey has returned
// a problem for the policy before.
func (n *Names) WrongKey(c *quota.Charge) (problem, right string) {
	if !n.keys.declared.Load() || c.Policy == nil {
		return "", ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.keys.policies[c.Policy.Name]
	if p == nil || p.warned || p.unknown {
		return "", ""
	}
	problem, right = p.wrong(c.Key)
	switch inside := c.Partition != "" && c.Partition != c.Key; {
	case problem != "":
	case inside && !p.within:
		problem, right = "a charge that is within another key, and those of requests are not", "leave out Within"
	case c.Partition == "" && !p.outside:
		problem, right = "a charge that is not within another key, and those of requests are", "Charge.Within(outer) names the count within outer's"
	}
	p.warned = problem != ""
	return problem, right
}

func (p *policyForms) wrong(key string) (problem, right string) {
	if key == shared || slices.ContainsFunc(p.forms, func(f KeyForm) bool { return f.Has(key) }) {
		return "", ""
	}
	var kinds []string
	for _, f := range p.forms {
		kinds = append(kinds, f.Kind)
	}
	return "a key of a form that no request has", "Key.For of package middleware makes keys; those of this policy's requests begin with " + strings.Join(kinds, " or ")
}

// WrongOverrides warns, by o, of each policy that has an override for a key that no request has,
// once, and of each name of a policy, or in an override or plan, that is a misspelling of a declared one. It
// looks at what the table's sources hold, after each change, up to 1000 overrides of a policy.
func (n *Names) WrongOverrides(o observe.Observer) {
	if n.table == nil || !n.keys.declared.Load() {
		return
	}
	view := n.table.current.Load()
	if view == nil || n.keys.checked.Load() == view || n.keys.checked.Swap(view) == view {
		return
	}
	found := make(map[string]string)
	n.mu.Lock()
	for name, p := range n.keys.policies {
		if right := p.wrongIn(view, name); right != "" {
			p.warned, found[name] = true, right
		}
	}
	wrong := n.misspelled(view)
	for name := range wrong {
		if n.keys.misspelled == nil {
			n.keys.misspelled = make(map[string]bool)
		}
		n.keys.misspelled[name] = true
	}
	n.mu.Unlock()
	for name, right := range wrong {
		o.Warned(observe.Warned{Policy: name, Text: "the table has a policy, overrides or plans of a name that no request is charged under", Hint: "did you mean " + right + "?"})
	}
	for name, right := range found {
		o.Warned(observe.Warned{Policy: name, Text: "an override is for a key of a form that no request has, and has no effect", Hint: right})
	}
}

// wrongIn returns what would be right in place of an override in v that no request has.
func (p *policyForms) wrongIn(v *View, name string) string {
	if p.warned || p.unknown {
		return ""
	}
	number := 0
	for _, c := range v.contents {
		e := c.names.get(name)
		if e == nil {
			continue
		}
		for _, o := range e.overrides.entries() {
			if number++; number > maxChecked {
				return ""
			}
			if _, right := p.wrong(o.Key); right != "" {
				return right
			}
		}
	}
	return ""
}
