package policies

import (
	"slices"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/quota"
)

// Override is what holds for one key in place of a policy's limits. It has Limits, or is
// Blocked, or Unlimited, or has nothing but a ParentKey.
//
// The key's count is the policy's, and goes on when an override comes, changes and goes:
// under Limits by the rules for limits that change, which docs/algorithms.md has.
type Override struct {
	Policy string `json:"policy,omitempty"` // the policy's name; a table need not have the policy itself
	Key    string `json:"key,omitempty"`    // as charged: opaque bytes of any length

	// Limits take the place of the policy's.
	Limits []quota.Limit `json:"limits,omitempty"`

	// Blocked refuses the key without asking the backend. The decision is Blocked, and
	// its retry time is Until, or never.
	Blocked bool `json:"blocked,omitempty"`

	// Unlimited allows the key everything. A FixedWindow and a SlidingWindow go on
	// counting, under a quota of quota.MaxQuota; after the override, a key that used more
	// than the policy's quota waits for the window's end. A SlidingLog and the two buckets
	// are not charged: they would owe for long after the override what was used under it.
	Unlimited bool `json:"unlimited,omitempty"`

	// ParentKey is the key that the policy's parent is charged for, in place of the
	// policy's ParentKey. If empty, that holds, or an earlier source's. Under a policy
	// without a parent it does nothing.
	ParentKey string `json:"parent_key,omitempty"`

	// Until is when the override ends, by the throttler's clock. If zero, it does not.
	Until time.Time `json:"until,omitzero"`

	Owner  string `json:"owner,omitempty"`  // says to an operator which team or person made it; may be empty
	Reason string `json:"reason,omitempty"` // says why, to an operator; may be empty

	limited *quota.Policy // of Limits
	until   int64         // ms since the epoch, or 0
	wrong   error         // of a plan that the table lacks
}

// Validate returns what is wrong with o, or nil. The error wraps quota.ErrInvalid.
func (o Override) Validate() error {
	_, err := o.prepare()
	return err
}

// prepare returns o as tables hold it, or what is wrong with it: without the key, since
// the text may go to a log.
func (o Override) prepare() (*Override, error) {
	kinds := 0
	for _, is := range []bool{len(o.Limits) > 0, o.Blocked, o.Unlimited} {
		if is {
			kinds++
		}
	}
	if kinds > 1 || kinds == 0 && o.ParentKey == "" {
		return nil, invalid.Errorf("policies: override of policy %q has %d limits, blocked %t and unlimited %t; it must have one of the three, or a parent key", o.Policy, len(o.Limits), o.Blocked, o.Unlimited)
	}
	o.Limits = slices.Clone(o.Limits)
	o.limited = &quota.Policy{Name: o.Policy, Limits: o.Limits}
	if len(o.Limits) == 0 { // the name must be valid all the same
		o.limited.Limits = []quota.Limit{{Quota: 1, Window: time.Second}}
	}
	if err := o.limited.Validate(); err != nil {
		return nil, invalid.Errorf("policies: override: %v", err)
	}
	o.until = 0
	if !o.Until.IsZero() {
		o.until = max(o.Until.UnixMilli(), 1)
	}
	return &o, nil
}

// holds reports whether o is in force at now, in ms since the epoch.
func (o *Override) holds(now int64) bool { return o.until == 0 || now < o.until }

// limits reports whether something holds under o in place of a policy's limits.
func (o *Override) limits() bool { return len(o.Limits) > 0 || o.Blocked || o.Unlimited }

// RetryAt returns when o, which is Blocked, ends, in ms since the epoch; 0 if it does not.
func (o *Override) RetryAt() int64 { return o.until }

// Err returns why decisions under o, which is by a plan, cannot be made, or nil.
func (o *Override) Err() error { return o.wrong }

// under returns the policy that holds under o in place of p, which may lack limits. If no
// limit holds, it has none.
func (o *Override) under(p *quota.Policy) *quota.Policy {
	switch {
	case o.wrong != nil || o.Blocked && len(p.Limits) > 0:
		return p
	case !o.Unlimited && o.limited.Unit == p.Unit:
		return o.limited
	case !o.Unlimited: // the unit is the policy's
		return &quota.Policy{Name: o.limited.Name, Limits: o.limited.Limits, Unit: p.Unit}
	}
	unlimited := &quota.Policy{Name: p.Name, Unit: p.Unit}
	for _, l := range p.Limits {
		// A bucket of that quota would drain at once, and a log has no such quota.
		l.Quota = quota.MaxQuota
		alone := quota.Policy{Name: p.Name, Limits: []quota.Limit{l}}
		if !l.Algorithm.Drains() && alone.Validate() == nil {
			unlimited.Limits = append(unlimited.Limits, l)
		}
	}
	return unlimited
}
