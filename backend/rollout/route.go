package rollout

import (
	"context"
	"hash/maphash"
	"sync"
	"time"
)

// view is a state of the flag, as far as this process knows.
type view struct {
	number int64 // rises with each event
	at     int64 // when it was learned, Unix ms
}

// version returns the version of a move to m by a view that was learned at that
// instant. Views of two processes may be of one instant: the member decides
// between them.
func (m *member) version(at int64) int64 { return at<<indexBits | m.index }

const indexBits = 6

// learn begins a new view: after an event, which makes every value questionable,
// or because a value was seen to have changed. Versions rise within a process,
// and beyond those of others that it has met: hosts' clocks differ.
func (b *Backend) learn(event bool) *view {
	for {
		old := b.view.Load()
		next := &view{number: old.number, at: max(time.Now().UnixMilli(), old.at+1, b.seen.Load()>>indexBits+1)}
		if event {
			next.number++
		}
		if b.view.CompareAndSwap(old, next) {
			return next
		}
	}
}

// met notes the version of another process.
func (b *Backend) met(version int64) {
	for {
		seen := b.seen.Load()
		if version <= seen || b.seen.CompareAndSwap(seen, version) {
			return
		}
	}
}

// stop is a place for counts, and the version by which they are there, or are to
// be.
type stop struct {
	member  *member
	version int64
}

// route says where to look for the counts of a partition first. It is a hint: a
// backend that does not have them says so.
type route struct {
	wanted *member // what the flag says
	at     stop    // there, or where another process has brought them
	view   int64   // number of the view in which the flag was asked

	askAt      time.Time // when to ask it again
	strayUntil time.Time // until when counts are followed to where the flag does not have them: others have seen a change that this process will see soon
}

// routes remembers routes by partition, up to a bound.
type routes struct {
	seed  maphash.Seed
	parts [64]routesPart
	bound int // of each part
}

type routesPart struct {
	mu sync.Mutex
	m  map[string]*route // a route is replaced, never changed
	_  [40]byte          // keeps the next lock off this one's cache line
}

func (r *routes) init(maxKeys int) {
	r.seed = maphash.MakeSeed()
	r.bound = max(maxKeys/len(r.parts), 1)
	for i := range r.parts {
		r.parts[i].m = make(map[string]*route)
	}
}

func (r *routes) part(partition string) *routesPart {
	return &r.parts[maphash.String(r.seed, partition)%uint64(len(r.parts))]
}

func (r *routes) get(partition string) *route {
	p := r.part(partition)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m[partition]
}

func (r *routes) put(partition string, route *route) {
	p := r.part(partition)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.m[partition]; !ok && len(p.m) >= r.bound {
		for other := range p.m { // any
			delete(p.m, other)
			break
		}
	}
	p.m[partition] = route
}

// routeOf returns the route of a partition.
func (b *Backend) routeOf(ctx context.Context, partition string) *route {
	old, now := b.routes.get(partition), time.Now()
	v := b.view.Load()
	if old != nil && old.view == v.number && now.Before(old.askAt) {
		return old
	}
	wanted, problem := b.evaluate(ctx, partition)
	if old != nil && problem == hangs {
		wanted = old.wanted // it did not say that it changed
	}
	r := b.renew(old, v, wanted, now)
	r.askAt = now.Add(b.refresh)
	if problem != "" {
		r.askAt = now.Add(min(b.refresh, time.Second))
	}
	b.routes.put(partition, r)
	return r
}

// renew returns the route that follows old, or nil, now that the flag wants the
// counts on a member.
func (b *Backend) renew(old *route, v *view, wanted *member, now time.Time) *route {
	r := &route{wanted: wanted, at: stop{wanted, wanted.version(v.at)}, view: v.number}
	switch {
	case old == nil:
	case old.at.member == wanted:
		r.at.version = max(r.at.version, old.at.version)
	case old.at.version < r.at.version:
	case old.wanted == wanted && now.Before(old.strayUntil):
		r.at, r.strayUntil = old.at, old.strayUntil // others have a later view
	default:
		// No event told of the change; or the others, with whom this process
		// still disagrees, had theirs long ago.
		r.at.version = wanted.version(b.learn(false).at)
	}
	return r
}

// found notes that the counts of a partition are at a stop.
func (b *Backend) found(partition string, at stop) {
	old := b.routes.get(partition)
	if old == nil || old.at == at {
		return
	}
	r, now := *old, time.Now()
	r.at = at
	if at.member != r.wanted && !now.Before(r.strayUntil) {
		r.strayUntil = now.Add(b.keep)
	}
	b.routes.put(partition, &r)
}
