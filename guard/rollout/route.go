package rollout

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/keyed"
)

// Where counts are
//
// A count is at one member at a time. Each move of it has a version: the time at which a process
// saw the flag change. The invariant: counts are where the move of the highest version has put
// them. Members keep to it, and release or take in nothing for a lower one. So a process with an
// old value of the flag moves nothing back: it is rejected with an ElsewhereError, and follows.
//
// A route is what this process believes. It has two members, which differ only while another
// process has seen a later change of the flag: the one that the flag selects here, and the one
// where the counts are. From a difference on, this process follows for Keep; after that, its own
// value of the flag is a change of its own.

// flagChange is the last change of the flag that this process has seen.
type flagChange struct {
	number int64 // rises with each event
	seenAt int64 // Unix ms; versions of moves are made of it
}

// version returns the version of a move to m after a change seen at that time. Two processes may
// see changes in the same millisecond; the member's index orders them.
func (m *member) version(seenAt int64) int64 { return seenAt<<indexBits | m.index }

const indexBits = 6

// flagChanged notes a change of the flag: an event invalidated every cached value, or one client's
// value has changed without an event. Its versions are newer than every version that this process
// has made, or has seen of others, because hosts' clocks differ. They may be older than a version
// that this process has not met: then it follows that move, for up to Keep, before its own value of
// the flag counts.
func (b *Backend) flagChanged(event bool) *flagChange {
	for {
		old := b.lastChange.Load()
		next := &flagChange{number: old.number, seenAt: max(b.now().UnixMilli(), old.seenAt+1, b.newest.Load()>>indexBits+1)}
		if event {
			next.number++
		}
		if b.lastChange.CompareAndSwap(old, next) {
			return next
		}
	}
}

// noteVersion notes the version of a move, seen in an answer: mostly another process's.
func (b *Backend) noteVersion(version int64) {
	for {
		newest := b.newest.Load()
		if version <= newest || b.newest.CompareAndSwap(newest, version) {
			return
		}
	}
}

// place is a member where counts are, or will be, and the version of the move there.
type place struct {
	member  *member
	version int64
}

// route is the place to try first for the counts of a partition.
type route struct {
	keyed.Entry
	selected   *member // by the flag, at its last evaluation
	change     int64   // number of the last change of the flag then
	evaluateAt time.Time

	place       place
	followUntil time.Time // if place is of another member than the selected one
}

// routes remembers routes by partition, up to a bound.
type routes struct {
	names   keyed.Hasher
	stripes [keyed.Stripes]routesStripe
}

type routesStripe struct {
	mu                   sync.Mutex
	keyed.Stripe[*route] // a route is replaced, never changed
}

func (r *routes) stripe(n keyed.Name) *routesStripe { return &r.stripes[n[0]%keyed.Stripes] }

func (r *routes) get(n keyed.Name) *route {
	s := r.stripe(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Get(n)
}

func (r *routes) put(n keyed.Name, next *route) {
	s := r.stripe(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.Get(n); old != nil {
		s.Remove(old)
	}
	s.MakeRoom(1, func(*route) float64 { return 0 }, s.Remove) // any
	s.Add(n, 1, next)
}

// routeOf returns the route of a partition.
func (b *Backend) routeOf(ctx context.Context, partition string) *route {
	name, now := b.routes.names.OfPartition(partition), b.now()
	old := b.routes.get(name)
	change := b.lastChange.Load()
	if old != nil && old.change == change.number && now.Before(old.evaluateAt) {
		return old
	}
	selected, problem := b.evaluate(ctx, partition)
	if old != nil && problem == problemTimeout {
		selected = old.selected // nothing says that it changed
	}
	r := b.nextRoute(old, change, selected, now)
	r.evaluateAt = now.Add(b.opts.Refresh)
	if problem != "" {
		r.evaluateAt = now.Add(min(b.opts.Refresh, time.Second))
	}
	b.routes.put(name, r)
	return r
}

// nextRoute returns the route that follows old, which may be nil, when the flag selects a member
// after that change.
func (b *Backend) nextRoute(old *route, change *flagChange, selected *member, now time.Time) *route {
	r := &route{selected: selected, change: change.number, place: place{selected, selected.version(change.seenAt)}}
	switch {
	case old == nil: // this process knows of no move
	case old.place.member == selected: // the counts are there
		r.place.version = max(r.place.version, old.place.version)
	case old.place.version < r.place.version: // the change is later than the last move
	case old.selected == selected && now.Before(old.followUntil): // another process has seen a later change
		r.place, r.followUntil = old.place, old.followUntil
	default: // the flag changed without an event, or its value differs from other processes' for longer than Keep
		r.place.version = selected.version(b.flagChanged(false).seenAt)
	}
	return r
}

// remember records where the counts of a partition are.
func (b *Backend) remember(partition string, found place) {
	name := b.routes.names.OfPartition(partition)
	old := b.routes.get(name)
	if old == nil || old.place == found {
		return
	}
	now := b.now()
	r := &route{selected: old.selected, change: old.change, evaluateAt: old.evaluateAt, place: found, followUntil: old.followUntil}
	if found.member != r.selected && !now.Before(r.followUntil) {
		r.followUntil = now.Add(b.opts.Keep)
	}
	b.routes.put(name, r)
}
