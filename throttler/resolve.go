package throttler

import (
	"cmp"
	"context"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// resolve makes r, a zero Request, the request for charges now, under the policies in force.
// It fills in every Partition and Cost, and adds up charges to one count. It neither changes
// nor keeps the caller's slice. If the table of policies leaves nothing to ask a backend,
// decided is the decision. The error says which argument is wrong.
func (t *Throttler) resolve(ctx context.Context, r *driver.Request, charges []Charge) (decided *decision.Decision, l *links, err error) {
	if len(charges) == 1 {
		c := r.Begin(&charges[0])
		if c.Partition == "" {
			c.Partition = c.Key
		}
		r.ServerTime = t.serverTime
		r.Now = t.now() // here, while the charge is written: see Begin
		if t.policies == nil {
			err = checkAlone(0, c)
		} else {
			decided, l, err = t.resolveOne(ctx, r, c)
		}
		if err == nil && c.Mode == quota.Capped {
			capCost(c)
		}
		return decided, l, err
	}
	if err := checkNumber(charges); err != nil {
		return nil, nil, err
	}
	now := t.now()
	if t.policies != nil {
		return t.resolveAll(ctx, r, now, charges)
	}
	for i, c := range charges {
		if err := checkAlone(i, &c); err != nil {
			return nil, nil, err
		}
	}
	merged, err := together(charges, nil)
	*r = t.request(now, merged)
	return nil, nil, err
}

// request returns the request for charges at now.
func (t *Throttler) request(now int64, charges []Charge) driver.Request {
	r := driver.NewRequest(now, charges...)
	r.ServerTime = t.serverTime
	return r
}

// resolveAll is resolve for several charges, or a parent, with a table of policies.
func (t *Throttler) resolveAll(ctx context.Context, r *driver.Request, now int64, charges []Charge) (decided *decision.Decision, l *links, err error) {
	resolved, callers, parents, decided, err := t.inForce(ctx, now, charges)
	if decided != nil || err != nil {
		return decided, nil, err
	}
	linked := len(parents) > 0 || slices.Contains(callers, -1)
	var places []int
	if linked {
		places = make([]int, len(resolved))
	}
	merged, err := together(resolved, places)
	if err != nil {
		return nil, nil, err
	}
	if len(merged) > quota.MaxCharges {
		return nil, nil, tooMany(len(merged))
	}
	if linked {
		l = newLinks(resolved, callers, parents, places, len(merged))
	}
	*r = t.request(now, merged)
	return nil, l, nil
}

func tooMany(n int) error {
	return invalid.Errorf("throttler: %d charges, with those of the policies' parents; a decision can have at most %d", n, quota.MaxCharges)
}

// resolveOne puts c, the only charge of r, under the policy in force. If that leaves nothing
// to ask a backend, decided is the decision.
func (t *Throttler) resolveOne(ctx context.Context, r *driver.Request, c *Charge) (decided *decision.Decision, l *links, err error) {
	if c.Policy == nil {
		return nil, nil, check(0, c)
	}
	policy, override, parent := t.policies.View().Resolve(ctx, c.Policy, c.Key, r.Now)
	if parent.Policy != "" {
		return t.resolveAll(ctx, r, r.Now, []Charge{*c})
	}
	c.Policy = policy
	if override != nil && override.Err() != nil {
		return nil, nil, override.Err()
	}
	if override == nil || len(policy.Limits) > 0 && !override.Blocked {
		return nil, nil, check(0, c)
	}
	if err := checkCost(0, c); err != nil {
		return nil, nil, err
	}
	if override.Blocked {
		return refuse(r.Now, []block{{*c, override}}), nil, nil
	}
	return allow(r.Now), nil, nil
}

// inForce returns charges under the policies in force at now, all by one state of the table,
// followed by charges added for parents. It leaves out charges that no limit holds for.
// callers has the index in resolved of each of the charges, or -1. If there is nothing to ask
// a backend, decided is the decision.
func (t *Throttler) inForce(ctx context.Context, now int64, charges []Charge) (resolved []Charge, callers []int, parents []added, decided *decision.Decision, err error) {
	view := t.policies.View()
	charges = slices.Clip(charges) // the caller's slice
	resolved, callers = make([]Charge, 0, len(charges)), make([]int, len(charges))
	var children []int // for each added charge, the index in resolved of the nearest charge below it, or -1
	var blocked []block
	for i := 0; i < len(charges); i++ { // parents are appended
		c := charges[i]
		if c.Partition == "" {
			c.Partition = c.Key
		}
		var override *policies.Override
		var parent policies.Parent
		if c.Policy != nil {
			c.Policy, override, parent = view.Resolve(ctx, c.Policy, c.Key, now)
		}
		if override != nil {
			if err := cmp.Or(override.Err(), checkCost(i, &c)); err != nil {
				return nil, nil, nil, nil, err
			}
			if override.Blocked {
				blocked = append(blocked, block{c, override})
				continue
			}
		}
		place := -1
		if override == nil || len(c.Policy.Limits) > 0 {
			place = len(resolved)
			resolved = append(resolved, c)
			if i >= len(callers) {
				parents = append(parents, added{place, children[i-len(callers)]})
			}
		}
		child := place
		if i < len(callers) {
			callers[i] = place
		} else if place < 0 {
			child = children[i-len(callers)]
		}
		if parent.Policy == "" {
			continue
		}
		if c.Mode == quota.AtMost {
			return nil, nil, nil, nil, invalid.Errorf("throttler: policy %q has the parent %q, and a charge in mode %v; a cost that fits both cannot be found in one decision: charge each in a separate call", c.Policy.Name, parent.Policy, c.Mode)
		}
		above, err := parentOf(view, c.Policy, parent.Policy, now)
		if err != nil {
			return nil, nil, nil, nil, err
		}
		if len(charges) >= quota.MaxCharges*(1+len(callers)) { // a line of parents may be endless
			return nil, nil, nil, nil, tooMany(len(charges) + 1)
		}
		charges, children = append(charges, Charge{Policy: above, Key: parent.Key, Cost: c.Cost, Mode: c.Mode}), append(children, child)
	}
	switch {
	case len(blocked) > 0:
		return nil, nil, nil, refuse(now, blocked), nil
	case len(resolved) == 0:
		return nil, nil, nil, allow(now), nil
	}
	return resolved, callers, parents, nil, nil
}

// parentOf returns the policy called name, which is the parent of p.
func parentOf(view policies.View, p *Policy, name string, now int64) (*Policy, error) {
	parent := view.PolicyAt(name, now)
	switch {
	case parent == nil:
		return nil, invalid.Errorf("throttler: policy %q has the parent %q, which the table of policies lacks", p.Name, name)
	case parent.Unit != p.Unit: // it is of another source, or has changed
		return nil, invalid.Errorf("throttler: policy %q counts %v, and its parent %q counts %v; they must count the same", p.Name, p.Unit, name, parent.Unit)
	}
	return parent, nil
}

// block is a charge that an override blocks.
type block struct {
	charge   Charge
	override *policies.Override
}

// refuse returns the decision at now about blocked charges.
func refuse(now int64, blocked []block) *decision.Decision {
	charges := make([]quota.Charge, len(blocked))
	for i := range blocked {
		charges[i] = blocked[i].charge
	}
	d := driver.NewDecision(driver.NewRequest(now, charges...))
	for i := range blocked {
		retryAt, resetAt := blocked[i].override.RetryAt(), blocked[i].override.RetryAt()
		if retryAt == 0 {
			retryAt, resetAt = driver.NeverFits, maxInstant
		}
		results := d.ResultsOf(i)
		for k := range results {
			results[k].Used = charges[i].Policy.Limits[k].Capacity()
			results[k].ResetAt, results[k].RetryAt, results[k].NextAt = resetAt, retryAt, resetAt
		}
	}
	decided := decision.FromDriver(d)
	decided.Blocked = true
	return &decided
}

// allow returns the decision at now about charges that no limit holds for. It is about no
// charges, like the decision of a backend without counts.
func allow(now int64) *decision.Decision {
	d := driver.NewDecision(driver.NewRequest(now))
	d.Allowed = true
	made := decision.FromDriver(d)
	return &made
}
