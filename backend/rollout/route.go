package rollout

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weir-go/weir/throttler"
)

// view is a state of the flag, as far as this process knows.
type view struct {
	number int64     // rises with each event
	at     int64     // when it was learned, Unix ms
	time   time.Time // when it was learned
}

// version returns the version of what a view that was learned at that instant
// wants of a count that it wants on m. Views of two processes may be of one
// instant: which member they want decides between them.
func (m *member) version(at int64) int64 { return at<<indexBits | m.index }

const indexBits = 6

// learn begins a new view: after an event, which makes every client's value
// questionable, or because a client's value was seen to have changed. Versions
// rise within a process, and beyond those of others that it has met: hosts'
// clocks differ.
func (b *Backend) learn(event bool) *view {
	for {
		old := b.view.Load()
		now := time.Now()
		next := &view{number: old.number, at: max(now.UnixMilli(), old.at+1, b.seen.Load()>>indexBits+1), time: now}
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

// countID is what names a count.
type countID struct{ policy, key, partition string }

func idOf(c *throttler.Charge) countID { return countID{c.Policy.Name, c.Key, c.Partition} }

// route is where a count is to be looked for.
type route struct {
	member  *member
	version int64 // of the view by which it is there
	settled bool  // it was found there, or begun

	wanted     *member // what the flag says
	since      int64   // version of the view in which the flag began to
	sinceTime  time.Time
	view       int64     // number of the view when it was last asked
	freshUntil time.Time // when it is to be asked again
	strayUntil time.Time // until when the count is followed where the flag does not have it: others have seen a change that this process will see soon
}

// routes remembers routes, up to a bound.
type routes struct {
	seed  maphash.Seed
	parts [64]routesPart
	bound int // of each part
}

type routesPart struct {
	mu sync.Mutex
	m  map[countID]*route // a route is replaced, never changed
	_  [40]byte           // keeps the next lock off this one's cache line
}

func (r *routes) init(maxKeys int) {
	r.seed = maphash.MakeSeed()
	r.bound = max(maxKeys/len(r.parts), 1)
	for i := range r.parts {
		r.parts[i].m = make(map[countID]*route)
	}
}

func (r *routes) part(id countID) *routesPart {
	return &r.parts[maphash.String(r.seed, id.partition)%uint64(len(r.parts))]
}

func (r *routes) get(id countID) *route {
	p := r.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m[id]
}

func (r *routes) put(id countID, route *route) {
	p := r.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.m[id]; !ok && len(p.m) >= r.bound {
		for other := range p.m { // any
			delete(p.m, other)
			break
		}
	}
	p.m[id] = route
}

// routeOf returns where the counts of charges, which share a partition, are to
// be looked for: in one place, that of the latest version among them.
func (b *Backend) routeOf(ctx context.Context, charges []throttler.Charge, now time.Time) (*route, bool) {
	var latest *route
	settled := true
	var wanted *member // what the flag said just now
	var problem string // why it is the default
	for i := range charges {
		id := idOf(&charges[i])
		r := b.routes.get(id)
		v := b.view.Load()
		if r == nil || r.view != v.number || now.After(r.freshUntil) {
			if wanted == nil {
				wanted, problem = b.evaluate(ctx, charges[i].Partition)
			}
			r = b.renew(r, v, wanted, problem, now)
			b.routes.put(id, r)
		}
		settled = settled && r.settled && (latest == nil || latest.member == r.member)
		if latest == nil || r.version > latest.version {
			latest = r
		}
	}
	return latest, settled
}

// renew returns the route of a count whose route was old, or nil, now that the
// flag wants it on a member, or that is the default because of a problem.
func (b *Backend) renew(old *route, v *view, wanted *member, problem string, now time.Time) *route {
	if old != nil && problem == hangs {
		wanted = old.wanted // it did not say that it changed
	}
	version := wanted.version(v.at)
	r := &route{member: wanted, version: version, wanted: wanted, since: version, sinceTime: v.time}
	switch {
	case old == nil && !b.events:
		r.sinceTime = now // this may be the first client by which a change is noticed
	case old == nil:
	case old.wanted == wanted:
		*r = *old
		if r.member != wanted && now.After(r.strayUntil) {
			r.member, r.version, r.settled, r.sinceTime = wanted, r.since, false, now
		}
	case old.view == v.number: // no event told of it
		v = b.learn(false)
		r.since, r.sinceTime = wanted.version(v.at), v.time
		r.version = r.since
	}
	r.view = v.number
	r.freshUntil = now.Add(b.refresh)
	if problem != "" {
		r.freshUntil = now.Add(min(b.refresh, time.Second))
	}
	return r
}

// found notes that the counts of charges are, or have begun, on member.
func (b *Backend) found(charges []throttler.Charge, m *member, version int64, now time.Time) {
	for i := range charges {
		id := idOf(&charges[i])
		old := b.routes.get(id)
		if old == nil || old.settled && old.member == m {
			continue
		}
		r := *old
		if r.member, r.version, r.settled = m, version, true; m != r.wanted {
			r.strayUntil = now.Add(b.keep)
		}
		b.routes.put(id, &r)
	}
}
