package rollout

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/keyed"
)

// view is a state of the flag, as far as this process knows.
type view struct {
	number    int64 // rises with each event
	firstSeen int64 // by this process, Unix ms
}

// version returns the version of a move to m by a view of that time. Two processes
// may have views of the same millisecond; the member's index orders them.
func (m *member) version(instant int64) int64 { return instant<<indexBits | m.index }

const indexBits = 6

// advance starts a new view: an event invalidated every cached value, or one client's value has
// changed without an event. Its versions are newer than every version that this process has made
// or observed, because hosts' clocks differ.
func (b *Backend) advance(event bool) *view {
	for {
		old := b.view.Load()
		next := &view{number: old.number, firstSeen: max(time.Now().UnixMilli(), old.firstSeen+1, b.observed.Load()>>indexBits+1)}
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
		observed := b.observed.Load()
		if version <= observed || b.observed.CompareAndSwap(observed, version) {
			return
		}
	}
}

// target is the member where counts are, or will be, and the version that placed them
// there.
type target struct {
	member  *member
	version int64
}

// route is the target to try first for the counts of a partition. It is a hint: a
// backend that does not have them returns an ElsewhereError.
type route struct {
	keyed.Entry
	wanted *member   // the flag's value
	target target    // of the wanted member, or where another process moved the counts
	view   int64     // number of the view at the flag's evaluation
	askAt  time.Time // when to evaluate the flag again

	// Until overrideUntil, target is used although the flag selects wanted: another process
	// moved the counts, and this one has not seen the change yet.
	overrideUntil time.Time
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
	name, now := b.routes.names.OfPartition(partition), time.Now()
	old := b.routes.get(name)
	v := b.view.Load()
	if old != nil && old.view == v.number && now.Before(old.askAt) {
		return old
	}
	wanted, problem := b.evaluate(ctx, partition)
	if old != nil && problem == problemTimeout {
		wanted = old.wanted // nothing says that it changed
	}
	r := b.nextRoute(old, v, wanted, now)
	r.askAt = now.Add(b.opts.Refresh)
	if problem != "" {
		r.askAt = now.Add(min(b.opts.Refresh, time.Second))
	}
	b.routes.put(name, r)
	return r
}

// nextRoute returns the route that follows old, which may be nil. wanted is the flag's value in
// the view v. Counts are where the move of the highest version has put them. A move by a
// later view has a higher version, so a process with an earlier view moves nothing back.
func (b *Backend) nextRoute(old *route, v *view, wanted *member, now time.Time) *route {
	r := &route{wanted: wanted, target: target{wanted, wanted.version(v.firstSeen)}, view: v.number}
	switch {
	case old == nil: // this process knows of no move
	case old.target.member == wanted: // the counts are there
		r.target.version = max(r.target.version, old.target.version)
	case old.target.version < r.target.version: // v is later than the last move
	case old.wanted == wanted && now.Before(old.overrideUntil): // another process has a later view than v
		r.target, r.overrideUntil = old.target, old.overrideUntil
	default: // the flag changed without an event, or its value here differs from others' for longer than Keep
		r.target.version = wanted.version(b.advance(false).firstSeen)
	}
	return r
}

// remember records that the counts of a partition are at a target.
func (b *Backend) remember(partition string, place target) {
	name := b.routes.names.OfPartition(partition)
	old := b.routes.get(name)
	if old == nil || old.target == place {
		return
	}
	now := time.Now()
	r := &route{wanted: old.wanted, target: place, view: old.view, askAt: old.askAt, overrideUntil: old.overrideUntil}
	if place.member != r.wanted && !now.Before(r.overrideUntil) {
		r.overrideUntil = now.Add(b.opts.Keep)
	}
	b.routes.put(name, r)
}
