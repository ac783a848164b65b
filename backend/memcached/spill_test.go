package memcachedbackend_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/throttler"
)

// member returns a charge of 1 to one of the keys of the partition acme.
func member(policy *throttler.Policy, i int) throttler.Charge {
	return throttler.Charge{Policy: policy, Key: fmt.Sprint("member", i), Partition: "acme"}
}

// spillingProcess is process, whose backend spills all counts but one at once.
func spillingProcess(t testing.TB, clk clock.Clock, addr string) *throttler.Throttler {
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, addr)}}, nil)
	b.SpillAt(1)
	return throttler.New(b, &throttler.Options{Clock: clk})
}

// A take costs the server as many bytes with 30,000 counts in the partition as with
// a few hundred, and all of them are found.
func TestManyCountsInAPartition(t *testing.T) {
	const members = 30_000 // some 1.8 MB
	server := testserver.Memcached(t)
	th := process(t, clock.NewManual(t0), nil, server.Addr)
	policy := perHour(100)
	traffic := func(from, to int) int64 {
		before := bytesOf(t, server.Addr)
		for i := from; i < to; i++ {
			d, err := th.Take(t.Context(), policy.Charge("acme"), member(policy, i))
			if err != nil || d.Limits[1].Used != 1 {
				t.Fatalf("member %d: %v, %v; want used 1", i, d.Limits, err)
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
	other := process(t, clock.NewManual(t0), nil, server.Addr)
	for i := 300; i < 300+members; i += 7 {
		d, err := other.Take(t.Context(), member(policy, i))
		if err != nil || d.Limits[0].Used != 2 {
			t.Fatalf("member %d: %v, %v; want used 2", i, d.Limits, err)
		}
	}
}

// bytesOf returns what the server has read and written.
func bytesOf(t *testing.T, addr string) int64 {
	t.Helper()
	return statOf(t, addr, "bytes_read") + statOf(t, addr, "bytes_written")
}

// Processes take, refund and settle for chains of charges, as their counts are
// spilled and come back, and every answer of a server is late or lost. In the end
// every count is what the decisions say, but for those that were left open.
func TestNothingIsLostWhileCountsAreSpilled(t *testing.T) {
	for _, test := range []struct {
		name    string
		spillAt int
		loses   bool
	}{{"one at a time", 1, false}, {"some", 400, false}, {"answers are lost", 1, true}, {"some, answers are lost", 400, true}} {
		t.Run(test.name, func(t *testing.T) {
			const processes, goroutines, each, members = 4, 6, 60, 12
			server := testserver.Memcached(t)
			addr := testserver.Relay(t, server.Addr, func(answer []byte) bool {
				if rand.IntN(4) == 0 {
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
				}
				return test.loses && !bytes.HasPrefix(answer, []byte("VALUE")) && rand.IntN(8) == 0
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
							p, m := rand.IntN(2), rand.IntN(members)
							chain := []throttler.Charge{perHour(1_000_000).Charge("acme"), member(policies[p], m)}
							if rand.IntN(3) == 0 {
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
							if note(err, 1) && rand.IntN(3) == 0 {
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
				for _, s := range d.Limits {
					// A take left open may have charged, a refund left open may not have given back.
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
			if !test.loses && orgOpen.Load() > 0 {
				t.Errorf("%d decisions are open", orgOpen.Load())
			}
		})
	}
}
