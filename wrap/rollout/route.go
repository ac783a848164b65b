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
	at     int64 // when this process first saw it, Unix ms
}

// version returns the version of a move to m by a view of that time. Two processes
// may have views of the same millisecond; the member's index orders them.
func (m *member) version(at int64) int64 { return at<<indexBits | m.index }

const indexBits = 6

// advance starts a new view, either because an event invalidated every cached value
// or because one client's value was seen to change. Its versions are newer than
// every version of this process and every one that it observed, because hosts'
// clocks differ.
func (b *Backend) advance(event bool) *view {
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

// observe records the version of another process.
func (b *Backend) observe(version int64) {
	for {
		seen := b.seen.Load()
		if version <= seen || b.seen.CompareAndSwap(seen, version) {
			return
		}
	}
}

// target is the member where counts are, or are to be, and the version that placed
// them there.
type target struct {
	member  *member
	version int64
}

// route is the target to try first for the counts of a partition. It is a hint: a
// backend that does not have them returns an ElsewhereError.
type route struct {
	wanted *member // the flag's value
	at     target  // the wanted member, or where another process moved the counts
	view   int64   // number of the view in which the flag was evaluated

	askAt time.Time // when to evaluate the flag again

	// Until overrideUntil, at is used although the flag says wanted: another process
	// moved the counts, and this one has not seen the change yet.
	overrideUntil time.Time
}

// routes remembers routes by partition, up to a bound.
type routes struct {
	seeds   [2]maphash.Seed
	stripes [64]routesStripe
	bound   int // of each stripe
}

// routeKey identifies a partition: 128 bits of seeded hashes. It bounds what a route
// takes whatever the partition's length, and clients cannot choose its stripe.
type routeKey [2]uint64

type routesStripe struct {
	mu sync.Mutex
	m  map[routeKey]*route // a route is replaced, never changed
	_  [40]byte            // keeps the next lock off this one's cache line
}

func (r *routes) init(maxKeys int) {
	r.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	r.bound = max(maxKeys/len(r.stripes), 1)
	for i := range r.stripes {
		r.stripes[i].m = make(map[routeKey]*route)
	}
}

func (r *routes) key(partition string) routeKey {
	return routeKey{maphash.String(r.seeds[0], partition), maphash.String(r.seeds[1], partition)}
}

func (r *routes) stripe(key routeKey) *routesStripe { return &r.stripes[key[0]%uint64(len(r.stripes))] }

func (r *routes) get(key routeKey) *route {
	s := r.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[key]
}

func (r *routes) put(key routeKey, route *route) {
	s := r.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.m[key]; !ok && len(s.m) >= r.bound {
		for other := range s.m { // any
			delete(s.m, other)
			break
		}
	}
	s.m[key] = route
}

// routeOf returns the route of a partition.
func (b *Backend) routeOf(ctx context.Context, partition string) *route {
	key, now := b.routes.key(partition), time.Now()
	old := b.routes.get(key)
	v := b.view.Load()
	if old != nil && old.view == v.number && now.Before(old.askAt) {
		return old
	}
	wanted, problem := b.evaluate(ctx, partition)
	if old != nil && problem == problemTimeout {
		wanted = old.wanted // nothing says that it changed
	}
	r := b.nextRoute(old, v, wanted, now)
	r.askAt = now.Add(b.refresh)
	if problem != "" {
		r.askAt = now.Add(min(b.refresh, time.Second))
	}
	b.routes.put(key, r)
	return r
}

// nextRoute returns an updated route. old is the previous one, or nil, and wanted the
// flag's current value.
func (b *Backend) nextRoute(old *route, v *view, wanted *member, now time.Time) *route {
	r := &route{wanted: wanted, at: target{wanted, wanted.version(v.at)}, view: v.number}
	switch {
	case old == nil:
	case old.at.member == wanted:
		r.at.version = max(r.at.version, old.at.version)
	case old.at.version < r.at.version:
	case old.wanted == wanted && now.Before(old.overrideUntil):
		r.at, r.overrideUntil = old.at, old.overrideUntil // others have a later view
	default:
		// The flag changed without an event, or this process has disagreed with the
		// others for longer than Keep.
		r.at.version = wanted.version(b.advance(false).at)
	}
	return r
}

// remember records that the counts of a partition are at a target.
func (b *Backend) remember(partition string, at target) {
	key := b.routes.key(partition)
	old := b.routes.get(key)
	if old == nil || old.at == at {
		return
	}
	r, now := *old, time.Now()
	r.at = at
	if at.member != r.wanted && !now.Before(r.overrideUntil) {
		r.overrideUntil = now.Add(b.keep)
	}
	b.routes.put(key, &r)
}
