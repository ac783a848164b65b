package policies

import (
	"context"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/quota"
)

// Plans that need no policy, for the function of [Edit.Plan].
const (
	Unlimited = "*unlimited" // as an Override that is Unlimited
	Blocked   = "*blocked"   // as an Override that is Blocked
)

// plan says what holds for the keys of a policy that have no override.
type plan struct {
	of                 func(ctx context.Context, key string) string
	unlimited, blocked *Override
}

// Plan makes of name what holds for each key under policy: another policy of the table,
// whose limits hold then, [Unlimited], [Blocked], or "" for the policy's own limits. Counts
// are the policy's in any plan, so that a key that changes plans keeps what it has used in
// windows that both have. An override for the key goes before its plan. Once the plan has ended, the
// policy's own limits hold. A plan that the table lacks is an error of the decision, which wraps
// quota.ErrInvalid.
//
// A decision calls of once for each charge under policy, with its context, which in a server
// has what a middleware in front has put into the request's. Without of, there are no plans.
func (e *Edit) Plan(policy string, of func(ctx context.Context, key string) string) {
	at := e.at(policy)
	at.plan = nil
	if of != nil {
		unlimited, err := Override{Policy: policy, Unlimited: true}.prepare()
		if err != nil {
			e.Mistake(err)
			return
		}
		blocked := *unlimited
		blocked.Unlimited, blocked.Blocked = false, true
		at.plan = &plan{of, unlimited, &blocked}
	}
	e.put(policy, at)
}

// override returns what holds for key under p, or nil if that is p.
func (p *plan) override(ctx context.Context, v View, policy *quota.Policy, key string, now int64) *Override {
	switch name := p.of(ctx, key); name {
	case "", policy.Name:
		return nil
	case Unlimited:
		return p.unlimited
	case Blocked:
		return p.blocked
	default:
		o := &Override{Policy: policy.Name}
		of := v.PolicyAt(name, now)
		switch {
		case of == nil && v.Policy(name) != nil: // it has ended
			return nil
		case of == nil:
			o.wrong = invalid.Errorf("policies: the plan of a key under policy %q is %q, which the table lacks; it must be the name of one of its policies, Unlimited, Blocked or empty", policy.Name, name)
		default:
			o.Limits = of.Limits
			o.limited = &quota.Policy{Name: policy.Name, Limits: of.Limits, Unit: policy.Unit}
		}
		return o
	}
}
