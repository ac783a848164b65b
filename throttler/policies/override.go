package policies

import (
	"slices"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/quota"
)

// Override replaces a policy's limits for one key. It has Limits, or is Blocked, or
// Unlimited, or has only a ParentKey.
//
// The key's count is the policy's, and continues when an override is added, changed or
// removed: under Limits, by the rules for changed limits in docs/start/algorithms.md.
type Override struct {
	Policy string `json:"policy,omitempty"` // the policy's name; a table need not have the policy itself
	Key    string `json:"key,omitempty"`    // as charged: opaque bytes, at least one

	// Limits take the place of the policy's.
	Limits []quota.Limit `json:"limits,omitempty"`

	// Blocked refuses the key without asking the backend. The decision is Blocked, and
	// its retry time is Until, or never. Pause of a Throttler is not stored here, but with the
	// counts.
	Blocked bool `json:"blocked,omitempty"`

	// Unlimited allows the key everything. A FixedWindow and a SlidingWindow continue to
	// count, with a quota of quota.MaxQuota; after the override, a key that used more than
	// the policy's quota waits for the window's end. A SlidingLog and the two buckets are
	// not charged: long after the override, they would owe the units used under it.
	Unlimited bool `json:"unlimited,omitempty"`

	// ParentKey is the key that the policy's parent is charged for, in place of the
	// policy's ParentKey. If empty, the ParentKey of an earlier source's override
	// holds, or the policy's. It has no effect under a policy without a parent.
	ParentKey string `json:"parent_key,omitempty"`

	// Until is when the override ends, by the throttler's clock. If zero, it doesn't end.
	Until time.Time `json:"until,omitzero"`

	Owner  string `json:"owner,omitempty"`  // the team or person that made it, for operators; may be empty
	Reason string `json:"reason,omitempty"` // why it was made, for operators; may be empty

	limited *quota.Policy // of Limits
	until   int64         // ms since the epoch, or 0
	wrong   error         // of a plan that the table lacks
}

// Validate returns why o is invalid, or nil. The error wraps quota.ErrInvalid.
func (o Override) Validate() error {
	_, err := o.prepare()
	return err
}

// prepare returns o as tables hold it, or why it is invalid. The error doesn't contain the
// key, since it may be logged.
func (o Override) prepare() (*Override, error) {
	kinds := 0
	for _, set := range []bool{len(o.Limits) > 0, o.Blocked, o.Unlimited} {
		if set {
			kinds++
		}
	}
	if o.Key == "" {
		return nil, invalid.Errorf("policies: override of policy %q has no key; an override is for one key, and the policy's own limits are for all", o.Policy)
	}
	if kinds > 1 || kinds == 0 && o.ParentKey == "" {
		return nil, invalid.Errorf("policies: override of policy %q has %d limits, blocked %t and unlimited %t; it must have one of the three, or a parent key", o.Policy, len(o.Limits), o.Blocked, o.Unlimited)
	}
	o.Limits = slices.Clone(o.Limits)
	o.limited = &quota.Policy{Name: o.Policy, Limits: o.Limits}
	if len(o.Limits) == 0 { // the name must still be valid
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

// limits reports whether o replaces a policy's limits.
func (o *Override) limits() bool { return len(o.Limits) > 0 || o.Blocked || o.Unlimited }

// RetryAt returns when o, which is Blocked, ends, in ms since the epoch; 0 if it doesn't end.
func (o *Override) RetryAt() int64 { return o.until }

// Err returns why no decision can be made under o, or nil: the table may lack its plan.
func (o *Override) Err() error { return o.wrong }

// apply returns the policy that holds in place of p, under o. p may have no limits. If no
// limit holds, the policy returned has no limits.
func (o *Override) apply(p *quota.Policy) *quota.Policy {
	switch {
	case o.wrong != nil || o.Blocked && len(p.Limits) > 0:
		return p
	case !o.Unlimited && o.limited.Unit == p.Unit && o.limited.Hidden == p.Hidden:
		return o.limited
	case !o.Unlimited: // the rest is the policy's
		return &quota.Policy{Name: o.limited.Name, Limits: o.limited.Limits, Unit: p.Unit, Hidden: p.Hidden}
	}
	unlimited := &quota.Policy{Name: p.Name, Unit: p.Unit, Hidden: p.Hidden}
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
