package memcachedbackend_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// member returns a charge of 1 to one of the keys of the partition acme.
func member(policy *throttler.Policy, i int) throttler.Charge {
	return throttler.Charge{Policy: policy, Key: fmt.Sprint("member", i), Cost: 1, Partition: "acme"}
}

// A take costs the server about as many bytes when the partition's counts exceed an item as
// with a few hundred of them, and every count is found.
func TestManyCountsInAPartition(t *testing.T) {
	const members = 1000 // some 60 kB
	options := &memcachedbackend.Options{MaxItemBytes: 48 << 10}
	server := testserver.Memcached(t)
	th := process(t, clock.NewManual(t0), options, server.Addr)
	policy := perHour(100)
	traffic := func(from, to int) int64 {
		before := bytesOf(t, server.Addr)
		for i := from; i < to; i++ {
			d, err := th.Take(t.Context(), policy.Charge("acme"), member(policy, i))
			if err != nil || d.Limit(1).Used != 1 {
				t.Fatalf("member %d: %v, %v; want used 1", i, d, err)
			}
			if _, err := th.Refund(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		return (bytesOf(t, server.Addr) - before) / int64(to-from) / 2
	}
	few := traffic(0, 300)
	fill(t, th, members, func(i int) throttler.Charge { return member(policy, i+300) })
	const another = 300 + members
	many := traffic(another, another+300)
	t.Logf("bytes a decision: %d with few counts, %d with %d", few, many, members)
	if many > 2*few+1000 {
		t.Errorf("a decision is %d bytes with %d counts, and %d with few", many, members, few)
	}
	other := process(t, clock.NewManual(t0), options, server.Addr)
	for i := 300; i < 300+members; i += 7 {
		d, err := other.Take(t.Context(), member(policy, i))
		if err != nil || d.Limit(0).Used != 2 {
			t.Fatalf("member %d: %v, %v; want used 2", i, d, err)
		}
	}
}

// bytesOf returns the number of bytes that the server has read and written.
func bytesOf(t *testing.T, addr string) int64 {
	t.Helper()
	return statOf(t, addr, "bytes_read") + statOf(t, addr, "bytes_written")
}

// Processes take and refund chains of charges while their counts are spilled and return, and
// some answers are late or lost. In the end every count matches the decisions, except for
// decisions of unknown outcome.
func TestNothingIsLostWhileCountsAreSpilled(t *testing.T) {
	for _, test := range []struct {
		name    string
		spillAt int
		loses   bool
	}{{"one at a time", 1, false}, {"some", 400, false}, {"answers are lost", 1, true}, {"some, answers are lost", 400, true}} {
		t.Run(test.name, func(t *testing.T) {
			const processes, goroutines, each, members = 4, 6, 20, 12
			server, random := testserver.Memcached(t), testseed.Locked(t, 0)
			addr := testserver.Relay(t, server.Addr, func(answer []byte) bool {
				if random.IntN(4) == 0 {
					time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
				}
				return test.loses && !bytes.HasPrefix(answer, []byte("VALUE")) && random.IntN(8) == 0
			})
			policies := [2]*throttler.Policy{perHour(1_000_000), {Name: "log", Limits: []throttler.Limit{
				{Quota: 5000, Window: time.Hour, Algorithm: throttler.SlidingLog}, {Quota: 1_000_000, Window: time.Hour},
			}}}
			var org, orgOpen atomic.Int64
			var used, open [2][members]atomic.Int64
			var wg sync.WaitGroup
			for range processes {
				b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, addr)}}, nil)
				b.SpillAt(test.spillAt)
				th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
				for range goroutines {
					wg.Go(func() {
						for range each {
							p, m := random.IntN(2), random.IntN(members)
							chain := []throttler.Charge{perHour(1_000_000).Charge("acme"), member(policies[p], m)}
							if random.IntN(3) == 0 {
								chain = chain[1:]
							}
							note := func(err error, cost int64) bool {
								member, all := &used[p][m], &org
								if err != nil {
									if !errors.Is(err, throttler.ErrUnavailable) {
										t.Error(err)
									}
									member, all, cost = &open[p][m], &orgOpen, 1
								}
								member.Add(cost)
								if len(chain) == 2 {
									all.Add(cost)
								}
								return err == nil
							}
							d, err := th.Take(t.Context(), chain...)
							if note(err, 1) && random.IntN(3) == 0 {
								_, err = th.Refund(t.Context(), d)
								note(err, -1)
							}
						}
					})
				}
			}
			wg.Wait()
			th := process(t, clock.NewManual(t0), nil, server.Addr)
			check := func(name string, c throttler.Charge, want, open int64) {
				d, err := th.Peek(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range d.Limits() {
					// An open take may have charged, and an open refund may not have refunded.
					if s.Used < want-open || s.Used > want+open {
						t.Errorf("%s, %v: used %d; the decisions say %d, and %d are open", name, s.Limit, s.Used, want, open)
					}
				}
			}
			acme := perHour(1_000_000).Charge("acme")
			check("acme", acme, org.Load(), orgOpen.Load())
			for p := range policies {
				for m := range members {
					check(fmt.Sprint("member ", m), member(policies[p], m), used[p][m].Load(), open[p][m].Load())
				}
			}
			t.Logf("acme: the decisions say %d, and %d are open", org.Load(), orgOpen.Load())
		})
	}
}

// sequence takes each charge, one after another, and returns when their counts are spilled.
func sequence(t *testing.T, th *throttler.Throttler, charges ...throttler.Charge) (last throttler.Decision) {
	t.Helper()
	for _, c := range charges {
		var err error
		if last, err = th.Take(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	// A decision about the same partition waits for a spill.
	if _, err := th.Peek(t.Context(), charges[0]); err != nil {
		t.Fatal(err)
	}
	return last
}

// The partition's item outlives the counts in separate items, which are void
// without it.
func TestPartitionOutlivesSpilledCounts(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	b.SpillAt(1)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	day := &throttler.Policy{Name: "day", Limits: []throttler.Limit{{Quota: 10, Window: 24 * time.Hour}}}
	short := &throttler.Policy{Name: "short", Limits: []throttler.Limit{{Quota: 10, Window: time.Minute}}}
	sequence(t, th, member(day, 0), member(short, 1), member(short, 2), member(short, 3))
	at := b.Locate(member(day, 0))
	if at.OwnKey == "" || at.Key != b.Locate(short.Charge("acme")).Key || b.Locate(short.Charge("acme")).OwnKey != "" {
		t.Fatalf("located at %+v", at)
	}
	own, partition := timeToLive(t, server.Addr, at.OwnKey), timeToLive(t, server.Addr, at.Key)
	if own < 24*time.Hour || partition < own {
		t.Errorf("the count's item goes in %v, the partition's in %v", own, partition)
	}
	if d := sequence(t, th, member(day, 0)); d.Limit(0).Used != 2 {
		t.Errorf("used %d, want 2", d.Limit(0).Used)
	}
}

// Without the partition's item, the items of single counts are stale: their counts begin
// again, and no old count returns later.
func TestLostPartitionTakesItsCountsAlong(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	b.SpillAt(1)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	policy := perHour(100)
	const members = 8
	for round := int64(1); round <= 3; round++ {
		for range 2 {
			for i := range members {
				sequence(t, th, member(policy, i))
			}
		}
		for i := range members {
			d, err := th.Peek(t.Context(), member(policy, i))
			if err != nil || d.Limit(0).Used != 2 {
				t.Errorf("round %d: member %d has used %d, %v; want 2", round, i, d.Limit(0).Used, err)
			}
		}
		at := b.Locate(member(policy, 0))
		if itemAt(t, server.Addr, at.OwnKey) == "" {
			t.Fatal("nothing was spilled")
		}
		deleteItem(t, server.Addr, at.Key)
	}
}

// A single lost count begins again, and the others continue.
func TestLostCount(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	b.SpillAt(1)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	policy := perHour(100)
	for _, c := range []throttler.Charge{policy.Charge("acme"), member(policy, 0), member(policy, 1), member(policy, 2)} {
		sequence(t, th, c)
	}
	deleteItem(t, server.Addr, b.Locate(member(policy, 1)).OwnKey)
	for c, want := range map[int]int64{0: 2, 1: 1, 2: 2} {
		if d := sequence(t, th, member(policy, c)); d.Limit(0).Used != want {
			t.Errorf("member %d: used %d, want %d", c, d.Limit(0).Used, want)
		}
	}
}

// A foreign item under a count's key is neither read as the count nor overwritten, and affects
// no other count.
func TestForeignItemOfACount(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	b.SpillAt(1)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	policy := perHour(100)
	key := b.Locate(member(policy, 0)).OwnKey
	setItem(t, server.Addr, key, "7")
	if _, err := th.Take(t.Context(), member(policy, 0)); !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), "something else wrote it") {
		t.Errorf("got %v", err)
	}
	for range 3 {
		sequence(t, th, member(policy, 1), member(policy, 2))
	}
	if got := itemAt(t, server.Addr, key); got != "7" {
		t.Errorf("it became %q", got)
	}
}

// A spilled count moves to another backend with its used units, and stays there when its claim
// is spilled.
func TestSpilledCountsMove(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	b.SpillAt(1)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	policy := perHour(100)
	sequence(t, th, member(policy, 0), member(policy, 0), member(policy, 1), member(policy, 2))
	request := handoff.ReleaseRequest{
		Now: t0.UnixMilli(), Charges: []throttler.Charge{member(policy, 0), member(policy, 3)},
		To: handoff.IDOf("there"), Version: 10, Keep: time.Minute,
	}
	released, err := b.Release(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	memory := memorybackend.NewDefault()
	there := &handoff.Placement{Backend: handoff.IDOf("there"), Version: 10, Keep: time.Minute, Arrivals: []handoff.Arrival{
		{Due: true, State: released[0].State, ReleaseVersion: released[0].ReleaseVersion},
	}}
	d, err := memory.TakeAt(t.Context(), driver.NewRequest(request.Now, request.Charges[0]), there)
	if err != nil || d.Results()[0].Used != 3 {
		t.Errorf("there: %v, %v; want used 3", d, err)
	}
	sequence(t, th, member(policy, 4), member(policy, 5), member(policy, 6)) // spill the claims
	here := &handoff.Placement{Backend: handoff.IDOf("here")}
	_, err = b.TakeAt(t.Context(), driver.NewRequest(request.Now, request.Charges...), here)
	elsewhere := (*handoff.ElsewhereError)(nil)
	if !errors.As(err, &elsewhere) || elsewhere.Counts[0].Owner != handoff.IDOf("there") || elsewhere.Counts[1].Owner != handoff.IDOf("there") {
		t.Errorf("here: %v, want an error that says where both counts are", err)
	}
}

// A batch of one process with counts too large for one item is decided in parts.
func TestLargeCountsOfManyKeys(t *testing.T) {
	server := testserver.Memcached(t)
	clk := clock.NewManual(t0)
	th := process(t, clk, &memcachedbackend.Options{MaxItemBytes: 4 << 10}, server.Addr)
	log := &throttler.Policy{Name: "log", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour, Algorithm: throttler.SlidingLog}}}
	const members, charges = 16, 40 // 400 bytes each
	for range charges {
		clk.Advance(time.Millisecond)
		var wg sync.WaitGroup
		for i := range members {
			wg.Go(func() {
				if _, err := th.Take(t.Context(), member(log, i)); err != nil && !t.Failed() {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	for i := range members {
		if d, err := th.Peek(t.Context(), member(log, i)); err != nil || d.Limit(0).Used != charges {
			t.Errorf("member %d: used %d, %v; want %d", i, d.Limit(0).Used, err, charges)
		}
	}
}
