package policies

import (
	"slices"
	"sync"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/quota"
)

// Names finds different policies of one name, which would be charged to one count, and keys of a
// form that no request has. A throttler has one, to which package middleware declares the policies that it knows.
type Names struct {
	table *Table // or nil

	mu       sync.Mutex
	declared map[string]*quota.Policy
	warned   map[string]bool // texts

	keys keyForms
}

// NewNames returns a Names without policies, for a throttler. The limits of table, which may be nil, hold for
// the names that it has, whatever policies are declared.
func NewNames(table *Table) *Names {
	if table != nil {
		table.used.Store(true)
	}
	return &Names{table: table}
}

// Declare returns an error that wraps quota.ErrInvalid if one of all, and a policy declared
// before, have one name and different limits.
func (n *Names) Declare(list ...*quota.Policy) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range list {
		if n.table == nil && p.Parent != "" {
			return invalid.Errorf("policies: policy %q has the parent %q, and the throttler has no table of policies, which parents need; set throttler.Options.Policies, or leave the parent out", p.Name, p.Parent)
		}
		if !p.Until.IsZero() && (n.table == nil || n.table.View().Policy(p.Name) == nil) {
			return invalid.Errorf("policies: policy %q has an end, and is not in the throttler's table of policies, where alone it has an effect; put it there, or leave Until out", p.Name)
		}
		switch o := n.declared[p.Name]; {
		case n.table != nil && n.table.View().Policy(p.Name) != nil:
		case o == nil:
			if n.declared == nil {
				n.declared = make(map[string]*quota.Policy)
			}
			n.declared[p.Name] = p
		case !slices.Equal(o.Limits, p.Limits):
			return invalid.Errorf("policies: two policies are named %q and have different limits, %v and %v; counts are found by name, so give each its own, or change limits in a table of policies", p.Name, o.Limits, p.Limits)
		}
	}
	return nil
}

// Warn gives o a warning about a policy, or without one if policy is "", for each text that was not
// warned of before.
func (n *Names) Warn(o observe.Observer, policy string, texts ...string) {
	for _, text := range texts {
		n.mu.Lock()
		again := n.warned[text]
		if n.warned == nil {
			n.warned = make(map[string]bool)
		}
		n.warned[text] = true
		n.mu.Unlock()
		if !again {
			o.Warned(observe.Warned{Policy: policy, Text: text})
		}
	}
}
