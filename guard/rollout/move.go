package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// decision is a decision in progress.
type decision struct {
	now        int64
	charges    []quota.Charge
	partition  string // of the charges
	readOnly   bool   // a peek
	serverTime time.Duration
	selected   *member           // by the flag
	turn       chan struct{}     // nil until this decision holds it
	arrivals   []handoff.Arrival // of the next call
}

// maxHops bounds the calls that one decision makes to the members. One is usual, and
// two when the counts move. Each further call needs another process that moved them
// with a newer version in the meantime: a call goes to the place of a newer
// version, or to the same one with the missing counts as arrivals. While the flag
// never rests, the context ends the decision: 256 calls were too few for one of many
// goroutines.
const maxHops = 4096

// decide moves the counts to where they belong, if they are not there, and makes
// the decision.
func (b *Backend) decide(ctx context.Context, d decision, call func(*member, *handoff.Placement) (driver.Decision, error)) (driver.Decision, error) {
	d.partition = d.charges[0].Partition
	r := b.routeOf(ctx, d.partition)
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	d.selected = r.selected
	defer d.endTurn()
	at := b.follow(&d, r.place.member, r.place.version)
	placement := at.member.placement
	for range maxHops {
		answer, err := call(at.member, placement)
		var away *handoff.ElsewhereError
		if !errors.As(err, &away) {
			if err == nil && !d.readOnly {
				at.member.served.Add(1)
				if at != r.place {
					b.remember(d.partition, at)
				}
			}
			return answer, err
		}
		if err := b.waitTurn(ctx, &d); err != nil {
			return driver.Decision{}, err
		}
		next, err := b.fetch(ctx, &d, at, away.Counts)
		if err != nil {
			return driver.Decision{}, err
		}
		placement = next.member.placement
		if next == at {
			placement = &handoff.Placement{Backend: at.member.id, Keep: b.opts.Keep, Version: at.version, Arrivals: d.arrivals}
		} else if next.member != at.member {
			b.stats.Change(func(s *Stats) { s.Followed++ })
		}
		at = next
	}
	return driver.Decision{}, fmt.Errorf("rollout: other processes moved the counts %d times while one decision was made: %w", maxHops, driver.ErrUnavailable)
}

// waitTurn waits until no other decision of this process fetches counts of the
// partition, so that only processes contend for them, never goroutines.
func (b *Backend) waitTurn(ctx context.Context, d *decision) error {
	if d.turn != nil {
		return nil
	}
	turn := b.turns[b.routes.names.Partition(d.partition)%uint64(len(b.turns))]
	select {
	case turn <- struct{}{}:
		d.turn = turn
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *decision) endTurn() {
	if d.turn != nil {
		<-d.turn
	}
}

// fetch asks the other members to release the counts in locations, which the member of to lacks,
// to it. It makes them d's arrivals, and returns to. If a move of a newer version has put one of
// them elsewhere, fetch returns that place. For a read-only decision nothing is released, and the
// arrivals are copies.
func (b *Backend) fetch(ctx context.Context, d *decision, to place, locations []handoff.Location) (place, error) {
	next := to
	for _, w := range locations {
		if owner := b.byID[w.Owner]; owner != nil {
			owner.named.Store(true)
		}
		if w.Version > next.version {
			next = b.follow(d, b.byID[w.Owner], w.Version)
		}
	}
	if next != to {
		return next, nil
	}
	release := d.release(to, b.opts.Keep, locations)
	for _, source := range b.members {
		if source == to.member || next != to {
			continue
		}
		released, err := b.release(ctx, source, to.member, release)
		if err != nil {
			return place{}, err
		}
		next = b.arrive(d, to, next, source, released)
	}
	return next, nil
}

// release returns the request to release the counts in locations to a member that lacks
// them. It makes them d's arrivals, as new counts until a member releases them.
func (d *decision) release(to place, keep time.Duration, locations []handoff.Location) handoff.ReleaseRequest {
	d.arrivals = make([]handoff.Arrival, len(locations))
	r := handoff.ReleaseRequest{Now: d.now, To: to.member.id, Version: to.version, Keep: keep, ServerTime: d.serverTime, ReadOnly: d.readOnly}
	for i, w := range locations {
		if w != (handoff.Location{}) {
			d.arrivals[i].Due = true
			r.Charges = append(r.Charges, d.charges[i])
		}
	}
	return r
}

// arrive adds the counts that a member has released to d's arrivals, and returns the
// place by the newest version known by then.
func (b *Backend) arrive(d *decision, to, next place, from *member, released []handoff.Released) place {
	for i := range d.arrivals {
		a := &d.arrivals[i]
		if !a.Due || len(released) == 0 {
			continue
		}
		r := released[0]
		released = released[1:]
		switch {
		case r.Superseded:
			owner := from
			if r.Owner != 0 {
				owner = b.byID[r.Owner]
			}
			if r.Version >= next.version {
				next = b.follow(d, owner, r.Version)
			}
		case r.ReleaseVersion > a.ReleaseVersion: // the newest of several copies
			*a = handoff.Arrival{Due: true, State: r.State, ReleaseVersion: r.ReleaseVersion}
			from.named.Store(true)
			if !r.AlreadyReleased && !d.readOnly {
				b.moved(observe.Moved{From: from.name, To: to.member.name})
			}
		}
	}
	return next
}

// follow returns the place where a move of that version has put counts. If its member is not
// configured in this process, or is lost and not the selected one, the selected one takes over
// under a newer version.
func (b *Backend) follow(d *decision, m *member, version int64) place {
	b.noteVersion(version)
	if m != nil {
		m.named.Store(true)
		if m == d.selected || !b.lost(m, d.partition) {
			return place{m, version}
		}
	}
	return place{d.selected, d.selected.version(version>>indexBits + 1)}
}

// release asks a member to release counts to another. A lost member is not asked: its
// counts restart.
func (b *Backend) release(ctx context.Context, m, to *member, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	if b.lost(m, r.Charges[0].Partition) {
		b.countLost(m, to, r)
		return nil, nil
	}
	ask := m.backend.Release
	if !m.named.Load() {
		ask = m.askUnnamed
	}
	released, err := ask(ctx, r)
	switch {
	case err != nil && ctx.Err() == nil && !m.named.Load():
		b.countLost(m, to, r)
		return nil, nil
	case err != nil:
		err = fmt.Errorf("rollout: releasing counts from %q: %w", m.name, err)
		if !r.ReadOnly {
			b.moved(observe.Moved{From: m.name, To: to.name, Err: err})
		}
		return nil, err
	}
	return released, nil
}

// lost reports whether to give up the counts that m may have in its shard of
// partition: the shard has been down for Abandon or, if nothing has ever named the
// member, is down.
func (b *Backend) lost(m *member, partition string) bool {
	since, down := m.backend.Down(partition)
	return down && (!m.named.Load() || time.Since(since) >= b.opts.Abandon)
}

// askUnnamed asks a member that nothing has named to this process: it may still have
// counts from before the process started. It is asked again if a reply may have been
// lost: a second release does no harm. It gets half of the time, so that a member that
// hangs does not fail the decision.
func (m *member) askUnnamed(ctx context.Context, r handoff.ReleaseRequest) (released []handoff.Released, err error) {
	began, most := time.Now(), r.ServerTime
	if deadline, ok := ctx.Deadline(); ok && (most == 0 || time.Until(deadline) < most) {
		most = time.Until(deadline)
	}
	r.ServerTime = most / 2
	for range 3 {
		if released, err = m.backend.Release(ctx, r); err == nil || ctx.Err() != nil || most > 0 && time.Since(began) >= most/2 {
			break
		}
	}
	return released, err
}

// countLost counts the counts in r, which m was not asked for, or did not release.
func (b *Backend) countLost(m, to *member, r handoff.ReleaseRequest) {
	switch {
	case r.ReadOnly:
	case !m.named.Load():
		b.stats.Change(func(s *Stats) { s.PassedOver += int64(len(r.Charges)) })
	default:
		for range r.Charges {
			b.moved(observe.Moved{From: m.name, To: to.name, Lost: true})
		}
	}
}

// moved counts a move, a loss or a move that failed.
func (b *Backend) moved(e observe.Moved) {
	switch {
	case e.Lost:
		b.stats.Change(func(s *Stats) { s.Lost++ })
	case e.Err == nil:
		b.stats.Change(func(s *Stats) { s.Moved++ })
	}
	b.opts.Observer.Moved(e)
}
