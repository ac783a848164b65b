package memcachedbackend

import (
	"context"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// decide makes a decision about charges, and waits for it or for ctx. If another process
// writes their item first, the decision is made again about the new item. If ctx ends, it may
// be made after decide has returned.
func (b *Backend) decide(ctx context.Context, serverTime time.Duration, charges []quota.Charge, decide handoff.Decide) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	key, server := b.place(charges[0].Partition)
	if server.breaker.Open() {
		return driver.Decision{}, server.unavailable(breaker.ErrOpen)
	}
	now := time.Now()
	if err := busy.HasTime(ctx); err != nil {
		return driver.Decision{}, err
	}
	deadline, bounded := ctx.Deadline()
	if !bounded && serverTime == 0 {
		serverTime = b.deadline
	}
	if end := now.Add(serverTime); serverTime > 0 && (!bounded || end.Before(deadline)) {
		deadline = end
	}
	names := namesOf(key, charges)
	var d driver.Decision
	j := &job{caller: ctx, deadline: deadline, begun: now, names: names, done: make(chan error, 1), change: func(p *item) (changed bool, err error) {
		return p.decide(names, decide, &d)
	}}
	server.queue(key, j)
	if err := server.wait(j); err != nil {
		return driver.Decision{}, err
	}
	return d, nil
}

// decide makes a decision about the counts of those names. It reports whether it changed
// the item.
func (p *item) decide(names []name, decide handoff.Decide, d *driver.Decision) (changed bool, err error) {
	stored := p.stored(names)
	decision, changes, err := decide(stored, p.now)
	*d = decision
	for i, c := range changes {
		if c.Changed && stored[i] != nil && stored[i].Err != nil && names[i].ownKey != "" {
			p.void = append(p.void, names[i].ownKey)
		}
	}
	return p.keep(names, changes), err
}

// stored returns the counts of those names: nil for a name without a count, and a Stored with
// an Err for an unreadable one.
func (it *item) stored(names []name) []*handoff.Stored {
	found := make([]*handoff.Stored, len(names))
	for i := range names {
		switch c, err := it.find(names[i]); {
		case err != nil:
			found[i] = &handoff.Stored{Err: err}
		case c != nil:
			found[i] = c.stored
		}
	}
	return found
}

// keep puts a decision's changed counts into the item, and reports whether there are any.
func (p *item) keep(names []name, changes []handoff.Change) (changed bool) {
	for i, c := range changes {
		if !c.Changed {
			continue
		}
		expiry := int64(0) // it stays
		if c.Life > 0 {
			expiry = p.now + c.Life + p.margin
		}
		p.put(names[i].inPartition, c.Stored, expiry)
		changed = true
	}
	return changed
}
