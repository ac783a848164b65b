// Package modes decides about each policy in its mode: exactly, by a call of a store for
// each decision; from units that this process leases of the same store; or from totals
// that processes agree on in the background. A policy can change its mode while it is in
// use, and no client gets a second quota by it.
//
// # Several modes in one take
//
// A take may charge policies of different modes. It is still all or nothing: synced
// policies are charged first, which needs no call, and then the others. If these refuse or
// fail, the synced units are refunded. A take that the synced counts refuse asks the
// store, too, by a peek, because an answer reports all limits. If the store doesn't
// answer, the answer is about the synced charges alone, and Degraded. A Peek does the same.
//
// # Changing a mode
//
// Exact and Leased policies have the same counts, and change into each other at once.
//
// Synced policies have separate counts. After a change from or to Synced, takes charge both
// counts and must fit both, for [Options.Agree] plus the time that a charge counts. So a
// process that still decides by the old counts alone sees all charges in them, and once a
// process decides by the new counts alone, they contain all charges that still count.
// Changes back and forth are no exception. A window needs nothing more. A token bucket that
// is always in use would never be as full in the new counts as in the old, so it is filled
// to its level in the old counts. If a policy changes from Synced together with limits that
// cannot be synced, such as a log, the store alone decides at once, from an empty count.
//
// This holds for processes that are running. A new process has the mode that it begins in.
// If a change is not complete, see [State], [Table.Begin] in the old mode, then set the new one.
//
// # Settlements
//
// Units return to the counts that were charged, whatever the policy's mode is now. Costs
// beyond the charge are charged to these counts and, if they support the charge's limits, to
// the policy's current counts.
package modes

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Backend is a driver.Backend over a store and synced counts. It is safe for
// concurrent use, and needs no closing.
type Backend struct {
	store driver.Backend
	soft  *synced.Backend
	table *Table
}

var (
	_ driver.Joiner     = (*Backend)(nil)
	_ driver.Rememberer = (*Backend)(nil)
)

// New returns a Backend that asks store about Exact and Leased policies, and soft about
// Synced ones. Both decide by the limits that charges carry, in every mode.
//
// The store leases if it is a leased.Backend with the table's Leases as its Options.Leases, or
// wraps one. A wrapper needs an Unwrap method, as in guard/fallback and guard/refusals. A store
// that leases nothing is fine as long as no policy is Leased, and so is a nil soft as long
// as no policy is Synced: from New on, the table's Begin and Set refuse these modes.
//
// An error wraps quota.ErrInvalid: store or soft doesn't fit the mode of a policy in the
// table. New panics if store or table is nil.
func New(store driver.Backend, soft *synced.Backend, table *Table) (*Backend, error) {
	if store == nil || table == nil {
		panic("modes: New: store or table is nil")
	}
	var leases func(*quota.Policy) bool // nil if store leases nothing
	if l, ok := driver.As[interface{ Leases(*quota.Policy) bool }](store); ok {
		leases = l.Leases
	}
	if err := table.bind(leases, soft != nil); err != nil {
		return nil, err
	}
	return &Backend{store, soft, table}, nil
}

// Joins implements driver.Joiner. b joins several partitions if the policies are all synced or
// all not, and the store joins them: a synced policy may have another mode at its settlement.
func (b *Backend) Joins(r driver.Request) bool {
	return b.counted(&r).all != inBoth && driver.Joins(b.store, &r)
}

// Refused implements driver.Rememberer for requests that the store alone counts.
func (b *Backend) Refused(ctx context.Context, r driver.Request) (d driver.Decision, known bool) {
	if b.counted(&r).all != inStore {
		return d, false
	}
	return driver.Refused(ctx, b.store, &r)
}

// Take implements driver.Backend.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	switch in := b.counted(&r); in.all {
	case inStore:
		return b.store.Take(ctx, r)
	case inSoft:
		d, err := b.soft.Take(ctx, r)
		mark(&d, inSoft)
		return d, err
	default:
		return b.takeBoth(ctx, r, in)
	}
}

// takeBoth takes from the synced counts and, if they allow it, from the store.
func (b *Backend) takeBoth(ctx context.Context, r driver.Request, in counted) (d driver.Decision, err error) {
	soft := in.half(&r, member.hasSoft)
	if soft.d, err = b.soft.Take(ctx, soft.Request); err != nil {
		return d, err
	}
	if !soft.d.Allowed {
		return b.peekToo(ctx, &r, in, soft)
	}
	left, charged := driver.NewDecision(r), soft.whole(&r)
	for i, c := range charged.Charges() {
		if c.Mode == quota.AtMost {
			left.SetCost(i, c.Cost) // the store charges no more
		}
	}
	store := in.half(&left.Request, member.hasStore)
	store.d, err = b.store.Take(ctx, store.Request)
	allowed := err == nil && store.d.Allowed
	if softErr := b.giveBack(ctx, &r, soft, store, allowed); err == nil {
		err = softErr // can't happen: its policies were known a moment ago
	}
	if err != nil {
		return d, err
	}
	if allowed && !store.d.Degraded {
		b.fill(ctx, &r, in, soft, store)
	}
	return in.merge(&r, soft, store), nil
}

// giveBack refunds the units that soft was charged beyond store, which may have had less
// room, or all units if the take is not allowed.
func (b *Backend) giveBack(ctx context.Context, r *driver.Request, soft, store *half, allowed bool) error {
	costs := make([]int64, len(soft.d.Charges()))
	if allowed {
		ofStore := store.whole(r)
		for k, c := range soft.d.Charges() {
			costs[k] = min(c.Cost, ofStore.Charges()[soft.Places[k]].Cost)
		}
	}
	if slices.EqualFunc(costs, soft.d.Charges(), func(cost int64, c quota.Charge) bool { return cost == c.Cost }) {
		return nil
	}
	after, err := b.soft.Settle(context.WithoutCancel(ctx), driver.Settlement{Now: r.Now, Charged: soft.d, Costs: costs})
	if err != nil {
		return err
	}
	for k, cost := range costs {
		soft.d.SetCost(k, cost)
	}
	for i, result := range after.Results() {
		result.Mark = soft.d.Results()[i].Mark
		soft.d.Results()[i] = result
	}
	return nil
}

// Peek implements driver.Backend.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (d driver.Decision, err error) {
	in := b.counted(&r)
	switch in.all {
	case inStore:
		return b.store.Peek(ctx, r)
	case inSoft:
		return b.soft.Peek(ctx, r)
	case inBoth:
	}
	soft := in.half(&r, member.hasSoft)
	if soft.d, err = b.soft.Peek(ctx, soft.Request); err != nil {
		return d, err
	}
	return b.peekToo(ctx, &r, in, soft)
}

// peekToo returns the decision about r from soft and a peek at the store. If the synced
// counts refuse r, it is refused even if the store doesn't answer.
func (b *Backend) peekToo(ctx context.Context, r *driver.Request, in counted, soft *half) (d driver.Decision, err error) {
	store := in.half(r, member.hasStore)
	store.d, err = b.store.Peek(ctx, store.Request)
	switch {
	case err == nil:
	case !soft.d.Allowed && errors.Is(err, driver.ErrUnavailable) && ctx.Err() == nil:
		store.d = driver.Decision{Degraded: true}
	default:
		return d, err
	}
	return in.merge(r, soft, store), nil
}

// Reset implements driver.Backend. It resets the policies' current counts.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	in := b.counted(&r)
	if in.all != inSoft {
		if err := b.store.Reset(ctx, in.half(&r, member.hasStore).Request); err != nil {
			return err
		}
	}
	if in.all == inStore {
		return nil
	}
	return b.soft.Reset(context.WithoutCancel(ctx), in.half(&r, member.hasSoft).Request)
}

var errNoReceipts = invalid.Errorf("modes: a count of a policy that is or was %v has no receipts: settle in the process that took", Synced)

// HasReceipt implements driver.Receiptless. Only charges in the store alone have a receipt.
func (b *Backend) HasReceipt(d *driver.Decision) error {
	if chargedIn(d).all != inStore {
		return errNoReceipts
	}
	return driver.HasReceipt(b.store, d)
}

// Settle implements driver.Backend.
func (b *Backend) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	r := st.Charged.Request
	r.Now = st.Now
	charged, now := chargedIn(&st.Charged), b.counted(&r)
	if st.PauseUntil > 0 && now.all != inStore {
		return driver.Decision{}, invalid.Errorf("modes: policy %q is synced, or was lately, and cannot be paused; make it exact", r.Charges()[0].Policy.Name)
	}
	in := charged
	for i, c := range r.Charges() {
		if in.of[i] != now.of[i] && st.Costs[i] > c.Cost && (in.of[i] != inStore || synced.Supports(c.Policy) == nil) {
			in.of[i] = inBoth // the additional cost is charged to the policy's current counts, if these support its limits
		}
		in.note(i)
	}
	if st.Once && in.all != inStore {
		return driver.Decision{}, errNoReceipts
	}
	switch in.all {
	case inStore:
		return b.store.Settle(ctx, st)
	case inSoft:
		d, err := b.soft.Settle(ctx, st)
		mark(&d, inSoft)
		return d, err
	case inBoth:
	}
	// The store comes first: if it fails and nothing was sent, the settlement is made again,
	// and would refund the synced counts a second time.
	soft, store := in.half(&r, member.hasSoft), in.half(&r, member.hasStore)
	var err, softErr error
	store.d, err = b.store.Settle(ctx, charged.settlement(&st, store, member.hasStore))
	if err != nil && !driver.MayHaveCharged(err) {
		return driver.Decision{}, err
	}
	soft.d, softErr = b.soft.Settle(context.WithoutCancel(ctx), charged.settlement(&st, soft, member.hasSoft))
	switch {
	case err != nil: // and there is no second settlement
		return driver.Decision{}, err
	case softErr != nil:
		return driver.Decision{}, softErr // can't happen: its policies were known when they were charged
	}
	return in.merge(&r, soft, store), nil
}
