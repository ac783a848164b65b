// Package consistency routes the charges of each policy to where its consistency [Level] says
// that they are decided: exactly, by a call of a store for each decision; from units that this
// process leases of the same store; or from totals that processes agree on in the background.
// A policy can change its level while it is in use, and no client gets a second quota by it.
//
// # Several levels in one take
//
// A [Backend] only routes charges: a throttler asks the store and the synced counts itself, and
// settles each charge where it was counted. A take may charge policies of different levels. It is
// still all or nothing: synced policies are charged first, which needs no call, and then the
// others. If these refuse or fail, the synced units are refunded. A take that the synced counts
// refuse asks the store, too, by a peek, because an answer reports all limits. If the store
// doesn't answer, the answer is about the synced charges alone, and Degraded. A Peek does the
// same.
//
// # Changing a level
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
// This holds for processes that are running. A new process has the level that it begins at.
// If a change is not complete, see [State], [Table.Begin] at the old level, then set the new one.
//
// # Settlements
//
// Units return to the counts that were charged, whatever the policy's level is now. Costs
// beyond the charge are charged to these counts and, if they support the charge's limits, to
// the policy's current counts.
package consistency

import (
	"context"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Backend routes charges to a store and to synced counts. It is for throttler.New: a wrapper
// around it fails. It is safe for concurrent use, and needs no closing.
type Backend struct {
	store driver.Backend
	soft  *synced.Backend
	table *Table
}

var _ driver.Router = (*Backend)(nil)

// New returns a Backend that asks store about Exact and Leased policies, and soft about
// Synced ones. Both decide by the limits that charges carry, at every level.
//
// The store leases if it is a leased.Backend with the table's Leases as its Options.Leases, or
// wraps one. A wrapper needs an Unwrap method, as in guard/fallback and guard/refusals. A store
// that leases nothing is fine as long as no policy is Leased, and so is a nil soft as long
// as no policy is Synced: from New on, the table's Begin and Set refuse these levels.
//
// An error wraps quota.ErrInvalid: store or soft doesn't fit the level of a policy in the
// table. New panics if store or table is nil.
func New(store driver.Backend, soft *synced.Backend, table *Table) (*Backend, error) {
	if store == nil || table == nil {
		panic("consistency: New: store or table is nil")
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

// Backends implements driver.Router.
func (b *Backend) Backends() []driver.Backend { return []driver.Backend{b.store, b.soft} }

// Route implements driver.Router.
func (b *Backend) Route(p *quota.Policy, now int64) uint8 {
	if e, ok := (*b.table.byName.Load())[p.Name]; ok {
		return e.route(p, now)
	}
	return inStore
}

// Taken implements driver.Router. It makes the token buckets of a policy that is changing its
// level as full in the new counts as in the old.
func (b *Backend) Taken(ctx context.Context, r driver.Request, results [][]driver.Result) {
	c := r.Charges()[0]
	ofStore, ofSoft := results[0], results[1]
	if (*b.table.byName.Load())[c.Policy.Name].level == Synced {
		b.soft.Raise(c, r.Now, ofStore)
	} else if missed := missing(c.Policy, ofSoft, ofStore); missed > 0 {
		// A take, and not a settlement: if several processes do this at once,
		// the bucket is full, and not in debt.
		c.Cost, c.Mode = missed, quota.Enforce
		_, _ = b.store.Take(ctx, r.Replace(c)) // the next take adds any units still missing
	}
}

// missing returns the units by which the buckets of p are fuller in the synced counts
// than in the store.
func missing(p *quota.Policy, soft, store []driver.Result) int64 {
	greatest := int64(0)
	for k := range p.Limits {
		l := &p.Limits[k]
		if !l.Algorithm.Drains() {
			continue
		}
		if missed := min(soft[k].Used, l.Capacity()) - store[k].Used; missed > 1 { // both are rounded up
			greatest = max(greatest, missed)
		}
	}
	return greatest
}

var errWrapped = invalid.Errorf("consistency: a Backend only routes charges, and was asked to decide; give it to throttler.New, without a wrapper around it")

// Take implements driver.Backend, for a wrapper around b. It fails.
func (*Backend) Take(context.Context, driver.Request) (d driver.Decision, err error) {
	return d, errWrapped
}

// Peek implements driver.Backend, for a wrapper around b. It fails.
func (*Backend) Peek(context.Context, driver.Request) (d driver.Decision, err error) {
	return d, errWrapped
}

// Settle implements driver.Backend, for a wrapper around b. It fails.
func (*Backend) Settle(context.Context, driver.Settlement) (d driver.Decision, err error) {
	return d, errWrapped
}

// Reset implements driver.Backend, for a wrapper around b. It fails.
func (*Backend) Reset(context.Context, driver.Request) error { return errWrapped }
