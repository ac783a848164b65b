package shares

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// A group is backends with shares of one policy that a test moves between them.
type group struct {
	t        testing.TB
	clock    *clock.Manual
	policy   *throttler.Policy
	backends []*Backend
	now      []division.Share // in force, by backend
}

func newGroup(t testing.TB, policy *throttler.Policy, n int, o Options) *group {
	t.Helper()
	g := &group{t: t, clock: clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), policy: policy, now: make([]division.Share, n)}
	o.Clock = g.clock
	for range n {
		b, err := newBackend("member", n, []*throttler.Policy{policy}, &o)
		if err != nil {
			t.Fatal(err)
		}
		g.backends = append(g.backends, b)
	}
	return g
}

// divide puts a division in force: first the lowered shares, and then the raised ones.
func (g *group) divide(next []division.Share) {
	first := !slices.ContainsFunc(g.now, func(s division.Share) bool { return s.Units > 0 })
	for i, b := range g.backends {
		was := g.now[i]
		lower := division.Share{Units: min(was.Units, next[i].Units), Keys: make(map[uint64]int64)}
		for _, keys := range []map[uint64]int64{was.Keys, next[i].Keys} {
			for key := range keys {
				lower.Keys[key] = min(was.Of(key), next[i].Of(key))
			}
		}
		b.apply(division.Shares{Valid: true, Quotas: []division.Share{lower}})
	}
	for i, b := range g.backends {
		b.apply(division.Shares{Valid: true, First: first, Quotas: []division.Share{next[i]}})
	}
	g.now = next
}

func (g *group) take(i int, key string, cost int64) *decision.Decision {
	charge := throttler.Charge{Policy: g.policy, Key: key, Cost: cost, Partition: key}
	d, err := g.backends[i].Take(g.t.Context(), driver.NewRequest(g.clock.Now().UnixMilli(), charge))
	if err != nil {
		g.t.Fatal(err)
	}
	decided := decision.FromDriver(d)
	return &decided
}

func hashed(key string) uint64 { return keyHash(&throttler.Charge{Key: key, Partition: key}) }

// Whatever divisions follow each other, of all keys and of some, all backends together admit no
// more units of a key than one bucket would, to the token, from the start. Keys are first seen
// at any time, and forgotten when their buckets are full.
func TestSequentialSharesMove(t *testing.T) {
	random := testseed.Rand(t, 0)
	const members = 3
	for range 12 {
		quota, window, burst := 3+random.Int64N(500), 1+random.Int64N(20_000), 3+random.Int64N(500)
		g := newGroup(t, tokens("core", quota, time.Duration(window)*time.Millisecond, burst), members, Options{})
		split := func() (parts [members]int64) {
			at := [members + 1]int64{members: quota}
			at[1] = random.Int64N(quota + 1)
			at[2] = at[1] + random.Int64N(quota-at[1]+1)
			for i := range parts {
				parts[i] = at[i+1] - at[i]
			}
			return parts
		}
		start := g.clock.Now().UnixMilli()
		whole, one := share{quota, window, burst}, make(map[string]*bucket)
		admitted := 0
		even := make([]division.Share, members)
		for i := range even {
			even[i].Units = quota / members
		}
		g.divide(even) // all start together, with full buckets
		for step := range 1500 {
			g.clock.Advance(time.Duration(random.Int64N(max(window/30, 2))) * time.Millisecond)
			switch random.IntN(20) {
			case 0:
				next := make([]division.Share, members)
				for i, units := range split() {
					next[i] = division.Share{Units: units, Keys: make(map[uint64]int64)}
				}
				for range random.IntN(6) { // some of them not known yet
					key := hashed(fmt.Sprint("key-", random.IntN(4+step/50)))
					for i, units := range split() {
						next[i].Keys[key] = units
					}
				}
				g.divide(next)
			case 1:
				g.backends[random.IntN(members)].sweep()
			}
			// Take all units of one key at one backend. More keys become known over time.
			key, i, cost := fmt.Sprint("key-", random.IntN(2+step/50)), random.IntN(members), 1+random.Int64N(max(burst/20, 2))
			for g.take(i, key, cost).Allowed {
				if one[key] == nil {
					one[key] = new(bucket)
				}
				now := g.clock.Now().UnixMilli() - start + maxInstant/2
				if _, ok := one[key].take(&whole, cost, now); !ok {
					t.Fatalf("%d per %d ms, %d at once: at %d ms, %q was admitted more than one bucket would", quota, window, burst, now-maxInstant/2, key)
				}
				admitted++
			}
		}
		if admitted < 50 && quota > 50 && burst > 50 {
			t.Errorf("%d per %d ms, %d at once: only %d were admitted", quota, window, burst, admitted)
		}
	}
}

// Takes in all goroutines, while shares change under them, admit no more than the shares'
// units.
func TestSharesChangeUnderTakes(t *testing.T) {
	const quota = 1000
	g := newGroup(t, tokens("core", quota, time.Hour, 0), 1, Options{}) // no token comes in time
	g.divide([]division.Share{{Units: 400}})
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				if g.take(0, "alice", 1).Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	for i := range int64(100) {
		g.divide([]division.Share{{Units: 300 + i%7*100}})
	}
	all.Wait()
	if n := admitted.Load(); n < 300 || n > 400 {
		t.Errorf("%d were admitted; want from 300 to the 400 that there were", n)
	}
}

// A key with its own division has its share, and the usual one when the division ends.
func TestHotKey(t *testing.T) {
	g := newGroup(t, tokens("core", 100, 10*time.Second, 0), 2, Options{})
	g.divide([]division.Share{{Units: 50}, {Units: 50}})
	admits := func(i int, key string) (n int) {
		g.clock.Advance(20 * time.Second)
		for g.take(i, key, 1).Allowed {
			n++
		}
		return n
	}
	check := func(when string, want ...int) {
		t.Helper()
		if got := []int{admits(0, "hot"), admits(1, "hot"), admits(0, "other"), admits(1, "other")}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s, %v were admitted of the hot key and of another; want %v", when, got, want)
		}
	}
	check("at the start", 50, 50, 50, 50)
	hot := hashed("hot")
	g.divide([]division.Share{{Units: 50, Keys: map[uint64]int64{hot: 90}}, {Units: 50, Keys: map[uint64]int64{hot: 10}}})
	check("with its own division", 90, 10, 50, 50)
	g.divide([]division.Share{{Units: 30}, {Units: 70}})
	check("without", 30, 70, 30, 70)
}

// Answers are about the whole quota, and promise only the units of this process.
func TestAnswers(t *testing.T) {
	g := newGroup(t, tokens("core", 100, 10*time.Second, 0), 2, Options{Refresh: 2 * time.Second})
	g.divide([]division.Share{{Units: 40}, {Units: 60}})
	now := g.clock.Now()
	s := g.take(0, "alice", 30).Limit(0)
	if s.Limit.Quota != 100 || s.Remaining != 10 || s.Used != 90 || !s.ResetAt.Equal(now.Add(7500*time.Millisecond)) {
		t.Errorf("after 30 of a share of 40: %+v", s)
	}
	s = g.take(0, "alice", 12).Limit(0)
	if !s.Refused || !s.RetryAt.Equal(now.Add(500*time.Millisecond)) || !s.NextAt.IsZero() {
		t.Errorf("12 when 10 are left: %+v; want a retry when 2 more have come", s)
	}
	s = g.take(0, "alice", 10).Limit(0)
	if s.Refused || s.Remaining != 0 || !s.NextAt.Equal(now.Add(250*time.Millisecond)) {
		t.Errorf("10 when 10 are left: %+v; want the next when one more has come", s)
	}
	s = g.take(1, "alice", 61).Limit(0) // more than the share
	if !s.Refused || !s.RetryAt.Equal(now.Add(2*time.Second)) {
		t.Errorf("61 of a share of 60: %+v; want a retry after the next division", s)
	}
	s = g.take(1, "alice", 101).Limit(0)
	if !s.Refused || !s.RetryAt.Equal(decision.Never) {
		t.Errorf("101 of a quota of 100: %+v; want Never", s)
	}
	g.divide([]division.Share{{Units: 0}, {Units: 100}})
	s = g.take(0, "alice", 1).Limit(0)
	if !s.Refused || s.Remaining != 0 || !s.RetryAt.Equal(now.Add(2*time.Second)) || !s.NextAt.Equal(s.RetryAt) {
		t.Errorf("1 of a share of nothing: %+v", s)
	}
}

// A process that starts again and again among idle processes, which leave it most of the quota,
// adds no more than a full bucket of the least share at each start.
func TestStartsAddTheLeastShare(t *testing.T) {
	const quota, members, starts = 600, 3, 20
	g := newGroup(t, tokens("core", quota, time.Hour, 0), members, Options{}) // no token comes in time
	hot := hashed("hot")
	large := division.Share{Units: 560, Keys: map[uint64]int64{hot: 580}}
	admitted := map[string]int{}
	for range starts {
		b, err := newBackend("member", members, []*throttler.Policy{g.policy}, &Options{Clock: g.clock})
		if err != nil {
			t.Fatal(err)
		}
		g.backends[0] = b
		b.apply(division.Shares{Quotas: []division.Share{{}}})
		b.apply(division.Shares{Valid: true, Quotas: []division.Share{large}})
		for _, key := range []string{"hot", "other"} {
			for g.take(0, key, 1).Allowed {
				admitted[key]++
			}
		}
		b.Close()
	}
	for key, n := range admitted {
		if most := starts * quota / (20 * members); n != most {
			t.Errorf("%d of key %q were admitted in %d starts; want %d", n, key, starts, most)
		}
	}
	// The bucket refills to the whole share.
	g.clock.Advance(2 * time.Hour)
	if !g.take(0, "other", 560).Allowed {
		t.Error("the bucket of a process that has started does not fill")
	}
}
