package policies

import (
	"context"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/quota"
)

// Plans that the function of [Edit.Plan] may return instead of a policy's name.
const (
	Unlimited = "*unlimited" // as an Override that is Unlimited
	Blocked   = "*blocked"   // as an Override that is Blocked
)

// plan chooses the limits for a policy's keys that have no override.
type plan struct {
	choose             func(ctx context.Context, key string) string
	unlimited, blocked *Override
}

// Plan sets the function that names the plan of each key under policy: another policy of
// the table, for its limits, [Unlimited], [Blocked], or "" for the policy's own limits. Under
// any plan the counts are the policy's, so a key that changes plans keeps its used units in
// windows that both plans have. An override for the key takes precedence over its plan. Once
// the plan has ended, the policy's own limits hold. If the table lacks the plan, the decision
// fails with an error that wraps quota.ErrInvalid.
//
// A decision calls choose once for each charge under policy, with its context. In a server, the
// context has the values that earlier middleware put into the request's. If choose is nil, the
// policy has no plans.
func (e *Edit) Plan(policy string, choose func(ctx context.Context, key string) string) {
	found := e.find(policy)
	found.plan = nil
	if choose != nil {
		unlimited, err := Override{Policy: policy, Key: "any", Unlimited: true}.prepare()
		if err != nil {
			e.Mistake(err)
			return
		}
		unlimited.Key = "" // it is of each key that the plan is chosen for
		blocked := *unlimited
		blocked.Unlimited, blocked.Blocked = false, true
		found.plan = &plan{choose, unlimited, &blocked}
	}
	e.put(policy, found)
}

// override returns the override for key's plan, or nil if the policy's own limits hold.
func (p *plan) override(ctx context.Context, v View, policy *quota.Policy, key string, now int64) *Override {
	switch name := p.choose(ctx, key); name {
	case "", policy.Name:
		return nil
	case Unlimited:
		return p.unlimited
	case Blocked:
		return p.blocked
	default:
		o := &Override{Policy: policy.Name}
		choice := v.PolicyAt(name, now)
		switch {
		case choice == nil && v.Policy(name) != nil: // it has ended
			return nil
		case choice == nil:
			o.wrong = invalid.Errorf("policies: the plan of a key under policy %q is %q, which the table lacks; it must be the name of one of its policies, Unlimited, Blocked or empty", policy.Name, name)
		default:
			o.Limits = choice.Limits
			o.limited = &quota.Policy{Name: policy.Name, Limits: choice.Limits, Unit: policy.Unit, Hidden: policy.Hidden}
		}
		return o
	}
}
