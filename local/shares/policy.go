package shares

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/throttler/quota"
)

// policy is a policy in force.
type policy struct {
	*quota.Policy
	sampler *division.Sampler
	shares  atomic.Pointer[shares]
	held    bool    // this process has ever held units; only apply uses it
	least   []share // a member's least share of each limit

	// greatest is the smallest capacity. A charge above it is never admitted, and is not demand:
	// shares would follow charges that no process can admit.
	greatest int64
}

// shares contains this process's shares of a policy's limits, from since until next begins.
// It has buckets only for keys that were never asked for.
type shares struct {
	since int64 // ms
	next  atomic.Pointer[shares]

	usual   keyShares
	divided map[uint64]*keyShares // by hash, of keys that have their own divisions or had them lately
}

// keyShares contains the shares of one key in a policy's limits. fresh contains the buckets
// of a key that existed since the start and was never asked for: new buckets begin as copies.
// If new buckets were full, shares that move between processes would give a key the tokens
// of its quota at each of them.
type keyShares struct {
	limits []share
	fresh  []bucket
}

// maxOwn bounds the keys of a policy that no longer have their own division, but still have
// other fresh buckets than the usual ones.
const maxOwn = 1024

func (s *shares) shareOf(hash uint64) *keyShares {
	if share, ok := s.divided[hash]; ok {
		return share
	}
	return &s.usual
}

// newPolicies returns the policies by name, and in order, for a list of that many members.
func newPolicies(list []*quota.Policy, members int, window time.Duration) (map[string]*policy, []*policy, error) {
	if len(list) == 0 {
		return nil, nil, invalid.Errorf("shares: policies is empty; it must have each policy that is charged")
	}
	byName, order := make(map[string]*policy), []*policy(nil)
	for i, source := range list {
		if source == nil {
			return nil, nil, invalid.Errorf("shares: policies[%d] is nil", i)
		}
		if err := source.Validate(); err != nil {
			return nil, nil, fmt.Errorf("shares: policies[%d]: %w", i, err)
		}
		if byName[source.Name] != nil {
			return nil, nil, invalid.Errorf("shares: policies[%d].Name is %q, as another's; names must differ", i, source.Name)
		}
		if err := divisible(source, members); err != nil {
			return nil, nil, err
		}
		p := &policy{Policy: source, sampler: division.NewSampler(window, 0), greatest: math.MaxInt64}
		p.shares.Store(&shares{usual: p.emptyShares()})
		for k := range source.Limits {
			l := &source.Limits[k]
			q := p.divided(k)
			p.least = append(p.least, shareOf(l, q.Low(members)))
			p.greatest = min(p.greatest, l.Capacity())
		}
		byName[source.Name], order = p, append(order, p)
	}
	return byName, order, nil
}

// emptyShares returns the shares of a process without units.
func (p *policy) emptyShares() keyShares {
	k := keyShares{make([]share, len(p.Limits)), make([]bucket, len(p.Limits))}
	for i := range p.Limits {
		k.limits[i] = shareOf(&p.Limits[i], 0)
	}
	return k
}

// shareOf returns the share of l's rate and, rounded down, of its capacity for that many
// units of its quota.
func shareOf(l *quota.Limit, units int64) share {
	return share{units, l.Window.Milliseconds(), l.Capacity() * units / l.Quota}
}

// Unsupported returns why a limit cannot be divided between that many members, or "".
func Unsupported(l *quota.Limit, members int) string {
	bound, needed := "must be at most "+strconv.Itoa(maxTokens)+", because a bucket counts no further; a shorter window with a smaller quota has the same rate", int64(members)
	switch {
	case l.Algorithm.Queues():
		return "a queue needs one order of all charges: it must be a token-bucket"
	case !l.Algorithm.Drains():
		return "a window's count cannot be divided while it runs, because what was admitted before would count against both shares: it must be a token-bucket"
	case l.Quota > maxTokens:
		return "the quota " + bound
	case l.Capacity() > maxTokens:
		return "the burst " + bound
	case min(l.Quota, l.Capacity()) < needed:
		return "the quota and the burst must be at least " + strconv.Itoa(members) + ", a unit for each member"
	}
	return ""
}

// divisible returns an error if a limit of p cannot be divided between that many members.
func divisible(p *quota.Policy, members int) error {
	for k := range p.Limits {
		if reason := Unsupported(&p.Limits[k], members); reason != "" {
			return invalid.Errorf("shares: policy %q: limit %d is %v; %s", p.Name, k, p.Limits[k], reason)
		}
	}
	return nil
}

// divided returns the quota to divide for limit k, by the policy's demand.
func (p *policy) divided(k int) division.Quota {
	l := &p.Limits[k]
	return division.Quota{Name: p.Name + "/" + strconv.Itoa(k), Total: l.Quota, Step: divUp(l.Quota, l.Capacity()), Demand: p.sampler.Demand}
}

// apply puts new shares in force from now on. With the first units that this process
// holds, buckets are full if the whole fleet starts with them. Otherwise they have the tokens
// of full buckets of the least share, so that a process that starts again and again
// doesn't admit its whole share each time.
func (p *policy) apply(given []division.Share, fleetStarts bool, now int64) {
	old, first := p.shares.Load(), !p.held
	begin := func(k *keyShares, old *keyShares) {
		for i := range k.fresh {
			share, fresh := &k.limits[i], &k.fresh[i]
			switch {
			case !first:
				*fresh = old.fresh[i]
				fresh.move(&old.limits[i], share, now)
			case fleetStarts:
				*fresh = share.full(now)
			default:
				*fresh = share.capped(p.least[i].full(now), now)
			}
		}
	}
	s := &shares{since: now, usual: p.emptyShares()}
	for i := range given {
		s.usual.limits[i] = shareOf(&p.Limits[i], given[i].Units)
		p.held = p.held || given[i].Units > 0
	}
	begin(&s.usual, &old.usual)
	hashes := make(map[uint64]bool)
	for hash := range old.divided {
		hashes[hash] = true
	}
	for i := range given {
		for hash := range given[i].Keys {
			hashes[hash] = true
		}
	}
	for hash := range hashes {
		share := p.emptyShares()
		divided := false
		for i := range given {
			_, hasOwn := given[i].Keys[hash]
			divided = divided || hasOwn
			share.limits[i] = shareOf(&p.Limits[i], given[i].Of(hash))
		}
		begin(&share, old.shareOf(hash))
		if divided || len(s.divided) < maxOwn && !slices.Equal(share.fresh, s.usual.fresh) {
			if s.divided == nil {
				s.divided = make(map[uint64]*keyShares)
			}
			s.divided[hash] = &share
		} else {
			s.usual.lower(&share, now)
		}
	}
	old.next.Store(s)
	p.shares.Store(s)
}

// lower replaces fresh buckets of k by o's with fewer tokens. Both have the same limits.
func (k *keyShares) lower(o *keyShares, now int64) {
	for i := range k.fresh {
		if s := &k.limits[i]; s.wholeUnits(o.fresh[i], now) < s.wholeUnits(k.fresh[i], now) {
			k.fresh[i] = o.fresh[i]
		}
	}
}

// addDemand counts a charge as demand, if it can be admitted at all.
func (p *policy) addDemand(now moment, hash uint64, cost int64) {
	if cost > 0 && cost <= p.greatest {
		p.sampler.Add(time.UnixMilli(now.now+now.epoch), hash, cost)
	}
}

// check returns an error if a charge is not of a policy in force, with its limits: the
// members divide no others. A larger burst is valid for a charge that may start later,
// see Throttler.Wait: it is taken when the share has the tokens.
func (b *Backend) check(charges []quota.Charge) error {
	for i := range charges {
		charged := charges[i].Policy
		switch p := b.byName[charged.Name]; {
		case p == nil:
			return invalid.Errorf("shares: charge %d is of policy %q, which New was not given", i, charged.Name)
		case p.Policy != charged && !slices.EqualFunc(p.Limits, charged.Limits, atLeast):
			return invalid.Errorf("shares: charge %d is of policy %q with the limits %v; New was given %v, which the members divide: give other limits another name", i, charged.Name, charged.Limits, p.Limits)
		}
	}
	return nil
}

// atLeast reports whether charged is l, or has a larger burst.
func atLeast(l, charged quota.Limit) bool {
	if charged.Capacity() >= l.Capacity() {
		charged.Burst = l.Burst
	}
	return charged == l
}
