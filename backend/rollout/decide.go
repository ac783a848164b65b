package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// decision is one that is being made.
type decision struct {
	now     time.Time
	charges []throttler.Charge
	look    bool // it changes nothing
}

// maxHops bounds the places that one decision goes to, if its context does not.
// Two are usual for the first after a move, three if another process moves the
// counts meanwhile. Only a flag that says something else each time needs more:
// who takes several counts, at once with many who take one of them, may have to
// wait until these are done.
const maxHops = 10_000

// decide makes a decision where the counts are, after bringing them to where
// they belong.
func (b *Backend) decide(ctx context.Context, d decision, call func(*member, *handoff.Placement) (throttler.Decision, error)) (throttler.Decision, error) {
	now := time.Now()
	route, settled := b.routeOf(ctx, d.charges, now)
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	m, version, placement := route.member, route.version, route.member.placement
	if !settled && now.Before(route.sinceTime.Add(b.keep+lifeOf(d.charges))) {
		placement = &handoff.Placement{Backend: m.id, Keep: b.keep, MustExist: true}
	}
	for range maxHops {
		answer, err := call(m, placement)
		var away *handoff.ElsewhereError
		if !errors.As(err, &away) {
			m.health.note(ctx, err)
			if err == nil && !d.look {
				m.served.Add(1)
				if !settled || m != route.member {
					b.found(d.charges, m, version, now)
				}
			}
			return answer, err
		}
		next, arrivals, err := b.fetch(ctx, d, m, version, away.Counts)
		if err != nil {
			return throttler.Decision{}, err
		}
		settled = false
		if next.member != m {
			b.stats.followed.Add(1)
		}
		m, version = next.member, next.version
		placement = &handoff.Placement{Backend: m.id, Keep: b.keep, MustExist: true, Version: version, Arrivals: arrivals}
	}
	return throttler.Decision{}, fmt.Errorf("rollout: the counts were moved %d times while one decision was made: %w", maxHops, throttler.ErrUnavailable)
}

// lifeOf returns how long counts of charges can last. When so much has passed
// since the flag's last change, and the time in which others may not have seen
// it, nothing that was counted before it lives: a count that is not where it
// belongs is nowhere.
func lifeOf(charges []throttler.Charge) time.Duration {
	var life time.Duration
	for i := range charges {
		for _, l := range charges[i].Policy.Limits {
			switch l.Algorithm {
			case throttler.SlidingWindow:
				life = max(life, 2*l.Window)
			case throttler.TokenBucket, throttler.LeakyBucket:
				full := float64(l.Window) / float64(l.Quota) * float64(l.Capacity())
				life = max(life, time.Duration(min(full, float64(2*throttler.MaxWindow))))
			default:
				life = max(life, l.Window)
			}
		}
	}
	return life
}

// stop is a place for counts, and the version of the view that chose it.
type stop struct {
	member  *member
	version int64
}

// fetch has the counts that are not at m, as where says, released by the other
// members to m, unless a later view than version has placed them elsewhere:
// then that is the next stop, and nothing arrives. A decision that only looks
// has nothing released, and is given copies.
func (b *Backend) fetch(ctx context.Context, d decision, m *member, version int64, where []handoff.Location) (stop, []handoff.Arrival, error) {
	latest := stop{m, version}
	for _, w := range where {
		b.met(w.Version)
		if w.Version > latest.version {
			latest = b.stopAt(b.byID[w.Owner], w.Version, m)
		}
	}
	if latest.member != m {
		return latest, nil, nil
	}
	release := handoff.ReleaseRequest{Now: d.now, To: m.id, Version: latest.version, Keep: b.keep, ReadOnly: d.look}
	var asked []int // the places in d.charges of release.Charges
	for i, w := range where {
		if w != (handoff.Location{}) {
			asked = append(asked, i)
			release.Charges = append(release.Charges, d.charges[i])
		}
	}
	arrivals := make([]handoff.Arrival, len(where))
	for _, i := range asked {
		arrivals[i].Due = true
	}
	for _, other := range b.members {
		if other == m {
			continue
		}
		released, err := b.release(ctx, other, release)
		if err != nil {
			return stop{}, nil, err
		}
		for k, r := range released {
			i := asked[k]
			switch {
			case r.Superseded:
				b.met(r.Version)
				owner := other
				if r.Owner != 0 {
					owner = b.byID[r.Owner]
				}
				if r.Version >= latest.version {
					latest = b.stopAt(owner, r.Version, m)
				}
			case r.State == nil:
			case r.ReleaseVersion > arrivals[i].ReleaseVersion:
				arrivals[i] = handoff.Arrival{Due: true, State: r.State, ReleaseVersion: r.ReleaseVersion}
				if !r.AlreadyReleased && !d.look {
					b.stats.moved.Add(1)
				}
			}
		}
	}
	switch {
	case latest.member != m:
		return latest, nil, nil
	case latest.version > release.Version: // others bring it to m by a later view: help them
		return b.fetch(ctx, d, m, latest.version, where)
	}
	return latest, arrivals, nil
}

// stopAt returns the stop that a view of that version has chosen. A backend that
// is not one of ours can not be followed to: m goes on from what is left, by a
// later view.
func (b *Backend) stopAt(chosen *member, version int64, m *member) stop {
	if chosen == nil {
		return stop{m, m.version(version>>indexBits + 1)}
	}
	return stop{chosen, version}
}

// release asks a member to release counts. One that has not answered for long
// is taken to have none: their windows begin anew.
func (b *Backend) release(ctx context.Context, m *member, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	abandoned := m.health.failed(b.abandon, time.Now())
	if abandoned && !m.health.mayTry(time.Now()) {
		b.stats.lost.Add(int64(len(r.Charges)))
		return nil, nil
	}
	releaseCtx := ctx
	if deadline, ok := ctx.Deadline(); ok && abandoned {
		// Half of the time that is left is for the member that then decides.
		var cancel context.CancelFunc
		releaseCtx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	released, err := m.backend.Release(releaseCtx, r)
	m.health.note(ctx, err)
	switch {
	case err != nil && abandoned:
		b.stats.lost.Add(int64(len(r.Charges)))
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("rollout: counts that are to leave %q: %w", m.name, err)
	}
	return released, nil
}
