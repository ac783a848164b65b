package policies

import (
	"cmp"
	"context"

	"github.com/weir-go/weir/throttler/quota"
)

// Resolve returns the policy that holds for a charge of key under p at now, in ms since the
// epoch, and the override that it comes from, or nil. If the override is Blocked, the caller
// must not make the charge; if it has an Err, the caller must not decide. The policy has no
// limits if the override is Unlimited and no limit can count without a bound. p must not be
// nil. The context is for overrides that a source has to find, and for plans.
//
// If the parent returned is not empty, the caller must charge its policy as well.
func (v View) Resolve(ctx context.Context, p *quota.Policy, key string, now int64) (inForce *quota.Policy, override *Override, parent Parent) {
	var plan *plan
	for _, c := range v.contents {
		e := c.names.get(p.Name)
		if e == nil {
			continue
		}
		if (override == nil || parent.Key == "") && (e.find || e.overrides != nil) {
			if o := e.override(ctx, c.source, p.Name, key, now); o != nil {
				if override == nil && o.limits() {
					override = o
				}
				parent.Key = cmp.Or(parent.Key, o.ParentKey)
			}
		}
		if inForce == nil && e.policy != nil && e.policy.HoldsAt(now) {
			inForce = e.policy
		}
		plan = cmp.Or(plan, e.plan)
	}
	if inForce == nil {
		inForce = p
	}
	if override == nil && plan != nil {
		override = plan.override(ctx, v, inForce, key, now)
	}
	parent = parentOf(inForce, parent.Key)
	if override == nil {
		return inForce, nil, parent
	}
	return override.apply(inForce), override, parent
}

// Finds reports whether Resolve may have to find overrides of a policy, which takes the time of a
// source's server: a caller with little time can bound the context.
func (v View) Finds(policy string) bool {
	for _, c := range v.contents {
		if e := c.names.get(policy); e != nil && e.find {
			return true
		}
	}
	return false
}

// parentOf returns the parent of a charge under p. key is an override's ParentKey, or "".
func parentOf(p *quota.Policy, key string) Parent {
	if key = cmp.Or(key, p.ParentKey); key == "" || p.Parent == "" {
		return Parent{}
	}
	return Parent{Policy: p.Parent, Key: key}
}

// override returns the override for key that e, an entry of s, holds or finds, or nil.
func (e *entry) override(ctx context.Context, s *Source, policy, key string, now int64) *Override {
	if held := e.overrides.get(key); held != nil && held.holds(now) {
		return held
	}
	if e.find {
		if o := s.found.get(ctx, policy, key); o != nil && o.holds(now) {
			return o
		}
	}
	return nil
}
