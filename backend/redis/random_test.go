package redisbackend_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

var randomSteps = flag.Int("random-steps", 600, "decisions, or calls of several, that TestSequentialRandomDecisions makes")

// Histories begin empty, and reach each state in one way. Here decisions meet any state: of
// this policy and of others, by clocks that differ, claimed, released, foreign. Redis decides
// and stores the same as package handoff.
func TestSequentialRandomDecisions(t *testing.T) {
	t.Run("as they are", func(t *testing.T) { randomDecisions(t, 0) })
	t.Run("short rings", func(t *testing.T) {
		redisbackend.ShortRings(t)
		randomDecisions(t, 1)
	})
}

func randomDecisions(t *testing.T, stream uint64) {
	rng := testseed.Rand(t, stream)
	client := newClient(t, testserver.Redis(t).Addr)
	for done, n := 0, 0; done < *randomSteps; n++ {
		backend := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: client}}, &redisbackend.Options{Prefix: fmt.Sprint("r", n, ":"), Margin: randomMargin})
		s := &randomStates{t: t, rng: rng, client: client, backend: backend, now: t0.UnixMilli() + rng.Int64N(1e9)}
		s.choosePolicies()
		for range 60 {
			s.step()
			done++
		}
		client.FlushAll(t.Context())
	}
}

const (
	randomMargin = 5 * time.Hour   // clocks step back by less
	lastInstant  = 253402300799000 // the latest in a state
)

type randomStates struct {
	t       *testing.T
	rng     *rand.Rand
	client  *redis.Client
	backend *redisbackend.Backend
	now     int64

	policies []*throttler.Policy // one for each charge
	others   []*throttler.Policy // another version of each
	taken    []driver.Decision
	isStray  bool // a clock is ahead by more than the margin: then a count of several limits may end early
	lines    []string
}

func (s *randomStates) choosePolicies() {
	charges, limits := 1+s.rng.IntN(3), 5
	if s.rng.IntN(3) == 0 { // like most policies
		charges, limits = 1, 1
	}
	for i := range charges {
		p := policy(fmt.Sprint("p", i))
		for range 1 + s.rng.IntN(limits) {
			if l := s.limit(); policy("p", append(p.Limits, l)...).Validate() == nil {
				p.Limits = append(p.Limits, l)
			}
		}
		other := policy(p.Name, p.Limits...)
		for other.Limits = nil; other.Validate() != nil; {
			other.Limits = append([]throttler.Limit(nil), p.Limits...)
			l := &other.Limits[s.rng.IntN(len(other.Limits))]
			switch s.rng.IntN(4) {
			case 0:
				l.Quota = 1 + s.rng.Int64N(min(2*l.Quota, 1<<53-1))
			case 1:
				l.Window = (l.Window/2 + time.Duration(s.rng.IntN(2000))*time.Millisecond).Truncate(time.Millisecond)
			case 2:
				other.Limits = append(other.Limits, s.limit())
			case 3:
				other.Limits = other.Limits[:max(len(other.Limits)-1, 1)]
			}
		}
		s.policies, s.others = append(s.policies, p), append(s.others, other)
	}
}

func (s *randomStates) limit() throttler.Limit {
	windows := []time.Duration{time.Millisecond, 7 * time.Millisecond, time.Second, 3 * time.Second, time.Minute, time.Hour, 100 * time.Hour, 365 * 24 * time.Hour}
	quotas := []int64{1, 2, 3, 5, 7, 10, 60, 999, 5000, 9999, 10_000, 65537, 1<<53 - 1, 1 << 53}
	for {
		l := throttler.Limit{Algorithm: pick(s.rng, append(quota.Algorithms(), throttler.FixedWindow)), Quota: pick(s.rng, quotas), Window: pick(s.rng, windows)}
		if s.rng.IntN(3) == 0 {
			l.Aligned = true
		}
		if s.rng.IntN(3) == 0 {
			l.Burst = pick(s.rng, quotas)
		}
		if l.Algorithm == throttler.LeakyBucket && s.rng.IntN(3) == 0 {
			l.MaxWait = time.Duration(1+s.rng.IntN(5000)) * time.Millisecond
		}
		if policy("p", l).Validate() == nil {
			return l
		}
	}
}

func pick[T any](rng *rand.Rand, all []T) T { return all[rng.IntN(len(all))] }

func (s *randomStates) cost(p *throttler.Policy) int64 {
	capacity := pick(s.rng, p.Limits).Capacity()
	switch s.rng.IntN(8) {
	case 0:
		return 0
	case 1:
		return min(capacity, quota.MaxQuota)
	case 2:
		return min(capacity+1, quota.MaxQuota)
	case 3:
		return 1 + s.rng.Int64N(capacity)
	case 4:
		return capacity/2 + 1
	case 5:
		return pick(s.rng, []int64{1 << 32, 1<<32 - 1, 1 << 53})
	}
	return 1
}

// charges returns a charge of each of the policies, in one of a few partitions.
func (s *randomStates) charges(policies []*throttler.Policy) []throttler.Charge {
	partition := pick(s.rng, []string{"a", "a", "a", "b"})
	var all []throttler.Charge
	for _, p := range policies {
		c := throttler.Charge{Policy: p, Key: partition, Partition: partition, Cost: s.cost(p)}
		if s.rng.IntN(3) == 0 {
			c.Mode = pick(s.rng, []quota.Mode{quota.Record, quota.Check, quota.AtMost})
		}
		all = append(all, c)
	}
	return all
}

func (s *randomStates) step() {
	switch n := s.rng.IntN(20); {
	case n < 8:
	case n < 12:
		s.now += s.rng.Int64N(10)
	case n < 16:
		s.now += s.rng.Int64N(2*pick(s.rng, s.policies[0].Limits).Window.Milliseconds() + 1)
	case n < 18 && len(s.taken) > 0: // at an edge
		d := pick(s.rng, s.taken)
		if at := pick(s.rng, d.Results()).ResetAt + s.rng.Int64N(3) - 1; at > s.now-3_600_000 && at < s.now+1e12 {
			s.now = at
		}
	default:
		s.now -= s.rng.Int64N(5000)
	}
	s.now = min(s.now, 5e12)
	charges := s.charges(s.policies)
	if s.rng.IntN(5) == 0 {
		s.write(pick(s.rng, charges))
	}
	switch n := s.rng.IntN(20); {
	case n < 8:
		s.take(driver.NewRequest(s.now, charges...), s.placement(len(charges)))
	case n < 10:
		s.take(driver.NewRequest(s.now, s.charges(s.others)...), nil)
	case n < 13:
		s.takeTogether(charges)
	default:
		s.settle()
	}
}

// placement returns a placement for a decision about that many counts, mostly nil.
func (s *randomStates) placement(charges int) *handoff.Placement {
	if s.rng.IntN(3) > 0 {
		return nil
	}
	p := &handoff.Placement{Backend: 1, Version: 1 + s.rng.Int64N(5), Keep: time.Minute}
	if s.rng.IntN(2) == 0 {
		p.Arrivals = make([]handoff.Arrival, charges)
		for i := range p.Arrivals {
			p.Arrivals[i].Due = s.rng.IntN(4) > 0
		}
	}
	return p
}

// write stores a value that another process or program may have written for c.
func (s *randomStates) write(c throttler.Charge) {
	var state algorithm.State
	now := s.now
	if s.rng.IntN(6) == 0 {
		by := pick(s.rng, []int64{-1e11, 1e11, -1000, 1000, 3_600_000})
		s.isStray = s.isStray || by == 1e11
		now = min(now+by, lastInstant)
	}
	p := c.Policy
	for range 1 + s.rng.IntN(6) {
		if s.rng.IntN(4) == 0 {
			p = pick(s.rng, []*throttler.Policy{p, s.others[p.Name[1]-'0'], policy(p.Name, s.limit())})
		}
		other := throttler.Charge{Policy: p, Key: c.Key, Partition: c.Partition, Cost: s.cost(p)}
		d := algorithm.Take(driver.NewRequest(now, other), []*algorithm.State{&state})
		if d.Allowed && s.rng.IntN(4) == 0 { // also into debt
			algorithm.Settle(driver.Settlement{Now: now, Charged: d, Costs: []int64{s.cost(p)}}, []*algorithm.State{&state})
		}
		now = min(now+s.rng.Int64N(100), lastInstant)
	}
	stored := handoff.Stored{State: state}
	expires := time.Now().Add(pick(s.rng, []time.Duration{-time.Hour, time.Hour})).UnixMilli()
	switch s.rng.IntN(6) {
	case 0, 1:
		stored.Claim = &handoff.Claim{Version: 1 + s.rng.Int64N(5), ExpiresAt: expires}
	case 2:
		version := 1 + s.rng.Int64N(5)
		stored.Claim = &handoff.Claim{Version: version, ExpiresAt: expires, LeftFor: handoff.BackendID(1 + s.rng.IntN(2)), ReleaseVersion: s.rng.Int64N(version + 1)}
	}
	value := stored.Append(nil)
	switch s.rng.IntN(12) {
	case 0:
		value = value[:s.rng.IntN(len(value)+1)]
	case 1:
		value = []byte(pick(s.rng, []string{"", "0", "abc", strings.Repeat("9", 19), strings.Repeat(" ", 19), "\x0a\x00\x04", strings.Repeat("\x01", 3000)}))
	}
	key := s.backend.Locate(c).Key
	s.note("stored under %s/%s: %x", c.Policy.Name, c.Key, value)
	s.client.Del(s.t.Context(), key)
	if s.rng.IntN(30) == 0 {
		s.client.RPush(s.t.Context(), key, "a")
		return
	}
	life := max(stored.Life(s.now, 0), 7_200_000) + randomMargin.Milliseconds()
	if err := s.client.Do(s.t.Context(), "set", key, value, "px", life).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// counts are the stored values of some charges.
type counts struct {
	keys   []string
	values []string
	ttls   []int64 // ms, negative if it does not expire
	stored []*handoff.Stored
	err    error // a value is not a count

	hasLeft []bool
}

func (s *randomStates) read(charges []throttler.Charge) *counts {
	c := new(counts)
	for _, charge := range charges {
		key := s.backend.Locate(charge).Key
		value, err := s.client.Get(s.t.Context(), key).Result()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		stored := new(handoff.Stored)
		if err == nil && value != "" {
			*stored, err = handoff.Parse([]byte(value))
		} else {
			stored = nil
		}
		c.err = errors.Join(c.err, err)
		c.hasLeft = append(c.hasLeft, stored != nil && stored.Claim != nil && stored.Claim.LeftFor != 0)
		c.keys, c.values, c.stored = append(c.keys, key), append(c.values, value), append(c.stored, stored)
		ttl, _ := s.client.Do(s.t.Context(), "pttl", key).Int64() // a time.Duration ends after 292 years
		c.ttls = append(c.ttls, ttl)
	}
	return c
}

// expect checks that the stored values are the values from before with changes made.
func (s *randomStates) expect(before *counts, charges []throttler.Charge, changes []handoff.Change, failed bool) {
	after, server := s.read(charges), time.Now().UnixMilli()
	for i := range after.values {
		if !failed && changes[i].Changed && len(changes[i].Append(nil)) == 0 {
			continue // nothing to store in place of a claim that the count has left
		}
		if failed || !changes[i].Changed {
			// A decision that changes nothing may still rewrite a value as scripts write it.
			same := after.values[i] == before.values[i]
			if !same && !failed && after.err == nil {
				same = after.stored[i] != nil && before.stored[i] != nil && bytes.Equal(after.stored[i].State.Append(nil), before.stored[i].State.Append(nil))
			}
			if !same {
				s.failf("charge %d: nothing was to change: %x was stored, and is now %x", i, before.values[i], after.values[i])
			}
			continue
		}
		if after.err != nil || after.stored[i] == nil {
			s.failf("charge %d: stored is %x: %v", i, after.values[i], after.err)
		}
		got, want := after.stored[i], changes[i].Stored
		if got.Claim != nil && len(after.values[i]) == 13+19 {
			s.failf("charge %d: digits behind a claim: %x", i, after.values[i])
		}
		if g, w := got.State.Append(nil), want.State.Append(nil); !bytes.Equal(g, w) {
			s.failf("charge %d: stored is %x\nwant      %x\nbefore    %x", i, g, w, before.values[i])
		}
		if g, w := got.Claim, want.Claim; w != nil && (g == nil || g.Version != w.Version || g.LeftFor != w.LeftFor) || w == nil && g != nil && g.ExpiresAt > server {
			s.failf("charge %d: its claim is %+v; want %+v", i, g, w)
		}
		const minute = 60_000
		if ttl := after.ttls[i]; changes[i].Life == 0 && ttl < before.ttls[i]-minute {
			s.failf("charge %d: it lives for %d ms, and for %d before, which was to stay", i, ttl, before.ttls[i])
		}
		life := want.Life(s.now, server)
		if ttl := after.ttls[i]; ttl < 0 || ttl < life-minute && !s.isStray || ttl > max(before.ttls[i], life+randomMargin.Milliseconds()+minute) {
			s.failf("charge %d: it lives for %d ms, and for %d before; it counts for %d\n%x\n%x", i, ttl, before.ttls[i], life, before.values[i], after.values[i])
		}
	}
}

func (s *randomStates) take(r driver.Request, p *handoff.Placement) {
	before := s.read(r.Charges())
	s.note("take at %d: %v under %+v", r.Now, r.Charges(), p)
	got, errGot := s.backend.TakeAt(s.t.Context(), r, p)
	want, changes, errWant := driver.Decision{}, []handoff.Change(nil), before.err
	if before.err == nil {
		want, changes, errWant = handoff.Take(r, p)(before.stored, time.Now().UnixMilli())
	}
	s.compare(got, want, errGot, errWant)
	s.expect(before, r.Charges(), changes, errWant != nil)
	if errGot == nil && got.Allowed {
		s.taken = append(s.taken, got)
	}
}

// takeTogether makes some decisions in one call.
func (s *randomStates) takeTogether(charges []throttler.Charge) {
	all := make([]driver.Request, 1+s.rng.IntN(20))
	for i := range all {
		own := append([]throttler.Charge(nil), charges...)
		if s.rng.IntN(2) == 0 {
			for k := range own {
				own[k].Cost = s.cost(own[k].Policy)
			}
		}
		for k := range own { // scripts may not decide larger charges to a queue, which then come last
			for _, l := range own[k].Policy.Limits {
				if l.Algorithm == throttler.LeakyBucket {
					own[k].Cost = min(own[k].Cost, l.Capacity()+1)
				}
			}
		}
		now := s.now
		if s.rng.IntN(4) == 0 {
			now += s.rng.Int64N(20) - 10
		}
		all[i] = driver.NewRequest(now, own...)
	}
	before := s.read(charges)
	s.note("at %d, %d takes of %v", s.now, len(all), charges)
	got, errs := s.backend.TakeTogether(s.t.Context(), all...)
	stored, changes := before.stored, make([]handoff.Change, len(charges))
	copy(stored, before.stored)
	for i, r := range all {
		s.note("  %d of %v", r.Now, r.Charges())
		want, made, errWant := driver.Decision{}, []handoff.Change(nil), before.err
		if before.err == nil {
			want, made, errWant = handoff.Take(r, nil)(stored, time.Now().UnixMilli())
		}
		s.compare(got[i], want, errs[i], errWant)
		for k := range made {
			if made[k].Changed {
				made[k].Life = max(made[k].Life, changes[k].Life)
				stored[k], changes[k] = made[k].Stored, made[k]
			}
		}
	}
	s.expect(before, charges, changes, before.err != nil)
}

// settle settles a take at random costs, with marks that are right or wrong.
func (s *randomStates) settle() {
	if len(s.taken) == 0 {
		return
	}
	d := pick(s.rng, s.taken)
	r := d.Request
	charged := driver.NewDecision(r)
	charged.Allowed = true
	copy(charged.Results(), d.Results())
	results := charged.Results()
	for i := range results {
		if s.rng.IntN(8) == 0 {
			results[i].Mark.At = max(pick(s.rng, []int64{0, s.now, s.now + 1, results[i].Mark.At + 1, results[i].Mark.At - 1, results[i].ResetAt, lastInstant}), 0)
		}
	}
	var costs []int64
	for _, c := range r.Charges() {
		costs = append(costs, pick(s.rng, []int64{0, c.Cost, max(c.Cost-1, 0), min(c.Cost+1, quota.MaxQuota), s.cost(c.Policy), s.cost(c.Policy)}))
	}
	p := s.placement(len(costs))
	st := driver.Settlement{Now: s.now, Charged: charged, Costs: costs, Renews: s.rng.IntN(5) == 0}
	for i, c := range r.Charges() {
		if st.Renews {
			costs[i] = c.Cost
		}
	}
	before := s.read(r.Charges())
	s.note("settle at %d: %v of %d to %v, %+v, renews %t, under %+v", s.now, r.Charges(), r.Now, costs, results, st.Renews, p)
	got, errGot := s.backend.SettleAt(s.t.Context(), st, p)
	want, changes, errWant := driver.Decision{}, []handoff.Change(nil), before.err
	if before.err == nil {
		want, changes, errWant = handoff.Settle(st, p)(before.stored, time.Now().UnixMilli())
		for i := range changes {
			if costs[i] == r.Charges()[i].Cost && !r.Charges()[i].Policy.Holds() && (p == nil || p.Arrivals == nil) && !before.hasLeft[i] {
				changes[i].Changed = false
			}
		}
	}
	s.compare(got, want, errGot, errWant)
	s.expect(before, r.Charges(), changes, errWant != nil)
}

func (s *randomStates) compare(got, want driver.Decision, errGot, errWant error) {
	if errGot == nil && errWant != nil && strings.Contains(errWant.Error(), "WRONGTYPE") && !charges(got) {
		return // MGET reads a value that is not a string as nil, which makes no difference here
	}
	var elsewhereGot, elsewhereWant *handoff.ElsewhereError
	if (errGot == nil) != (errWant == nil) || errors.As(errGot, &elsewhereGot) != errors.As(errWant, &elsewhereWant) || !reflect.DeepEqual(elsewhereGot, elsewhereWant) {
		s.failf("error %v, want %v", errGot, errWant)
	}
	if errGot != nil {
		return
	}
	if got.Allowed != want.Allowed || !reflect.DeepEqual(got.Results(), want.Results()) || !reflect.DeepEqual(got.Charges(), want.Charges()) {
		s.failf("got  %v %+v %+v\nwant %v %+v %+v", got.Allowed, got.Results(), got.Charges(), want.Allowed, want.Results(), want.Charges())
	}
}

// charges reports whether d has charged anything.
func charges(d driver.Decision) bool {
	return d.Allowed && slices.ContainsFunc(d.Charges(), func(c throttler.Charge) bool { return c.Cost > 0 })
}

func (s *randomStates) note(format string, args ...any) {
	for i, arg := range args {
		if charges, ok := arg.([]throttler.Charge); ok {
			var all []string
			for _, c := range charges {
				all = append(all, fmt.Sprintf("%v %d of %s/%s %v", c.Mode, c.Cost, c.Policy.Name, c.Key, c.Policy.Limits))
			}
			args[i] = strings.Join(all, " + ")
		}
	}
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *randomStates) failf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\nafter:\n%s", fmt.Sprintf(format, args...), strings.Join(s.lines[max(len(s.lines)-12, 0):], "\n"))
}
