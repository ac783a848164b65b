package synced

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// resendOf has several processes count keys, lets the root lose its memory, and returns the fleet
// when the processes have noticed it.
func resendOf(t *testing.T, processes, keys int) (f *fleet, policy *throttler.Policy) {
	policy = &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 100, Window: 1000 * time.Hour, Aligned: true}}}
	f = newFleet(t, processes, 1, Options{Sync: time.Second, MaxKeys: 1 << 20})
	for _, p := range f.processes {
		for i := range keys {
			if _, err := p.throttler.Take(t.Context(), policy.Charge(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.advance(f.elapsed + 30*time.Second)
	for _, p := range f.processes { // each hears of the last units
		for i := range keys {
			if _, err := p.throttler.Peek(t.Context(), policy.Charge(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.advance(f.elapsed + 30*time.Second)
	if n := len(f.roots[0].counters); n != keys {
		t.Fatalf("the root has %d counters, want %d", n, keys)
	}
	f.roots[0].flush()
	f.roots[0].entries = 0
	f.advance(f.elapsed + 1200*time.Millisecond)
	return f, policy
}

// A root that has lost its memory has every counter again. Each entry is sent by a few processes
// at most, and progress is seen. A counter that is charged does not wait for the others.
func TestARootGetsItsCountersBack(t *testing.T) {
	const keys, processes = 5_000, 12
	f, policy := resendOf(t, processes, keys)
	first := f.processes[0]
	if st := first.backend.Stats(); st.Losses["root-0"] != 1 || st.Unsent["root-0"] != keys {
		t.Errorf("after a flush: %+v; want 1 loss and %d unsent", st, keys)
	}
	hot := policy.Charge("4999")
	if _, err := first.throttler.Take(t.Context(), hot); err != nil {
		t.Fatal(err)
	}
	f.advance(f.elapsed + 2200*time.Millisecond)
	n := nameOf(&throttler.Charge{Policy: policy, Key: hot.Key, Partition: hot.Key})
	if c := f.roots[0].counters[string(n[:])+"w3600000000"]; c[1] != processes+1 {
		t.Errorf("two syncs after a charge, the root has %v; want %d units", c, processes+1)
	}
	f.advance(f.elapsed + 30*time.Second)
	if n := len(f.roots[0].counters); n != keys {
		t.Errorf("the root has %d counters again, want %d", n, keys)
	}
	for key, c := range f.roots[0].counters {
		if c[1] < processes {
			t.Fatalf("the root has %v of %x, want %d units", c, key, processes)
		}
	}
	if highest := int(constants["COPIES"]+1) * keys; f.roots[0].entries > highest {
		t.Errorf("the root received %d entries; want at most %d", f.roots[0].entries, highest)
	}
	for i, p := range f.processes {
		if st := p.backend.Stats(); st.Unsent["root-0"] != 0 {
			t.Errorf("process %d has %d to send", i, st.Unsent["root-0"])
		}
	}
	f.roots[0].entries = 0
	f.advance(f.elapsed + 10*time.Second)
	if f.roots[0].entries > 0 {
		t.Errorf("at rest, the root received %d entries", f.roots[0].entries)
	}
}

// Calls that a root has answered are not sent again, if it stops in the middle.
func TestAnsweredCallsAreNotSentAgain(t *testing.T) {
	const keys = 20_000
	f, _ := resendOf(t, 1, keys)
	root := f.roots[0]
	for down := range 40 {
		root.down = down%2 == 1
		f.advance(f.elapsed + 300*time.Millisecond)
	}
	root.down = false
	f.advance(f.elapsed + 10*time.Second)
	if n := len(root.counters); n != keys || root.entries > keys {
		t.Errorf("the root has %d counters of %d entries; want %d of as many", n, root.entries, keys)
	}
}

// A counter with room costs its root an entry for each sync in which it is charged, and no polls.
func TestNoPollsBelowHalf(t *testing.T) {
	policy := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 1000, Window: 1000 * time.Hour, Aligned: true}}}
	f := newFleet(t, 10, 1, Options{Sync: time.Second})
	for i := range 100 {
		f.taking(i%10, policy, 1)
		f.advance(f.elapsed + 1100*time.Millisecond)
	}
	if n := f.roots[0].entries; n > 110 {
		t.Errorf("the root received %d entries for 100 charges", n)
	}
}

// A real root takes a resend in pieces, and a second loss in the middle of it.
func TestRealResend(t *testing.T) {
	server := testserver.Redis(t)
	const keys = 20_000
	policy := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 10, Window: 1000 * time.Hour, Aligned: true}}}
	// A busy machine may be late by seconds; that pieces fit into a second is the model's to show.
	root, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}, ReadTimeout: time.Minute, WriteTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	servers, err := dial([]Root{{Name: "root", Client: root}}, "weir-sync:", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Sync: 50 * time.Millisecond}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	b := newBackend(servers, &o)
	b.start()
	defer b.Close()
	th, client := throttler.New(b, nil), redisClient(t, server.Addr)
	for i := range keys {
		if _, err := th.Take(t.Context(), policy.Charge(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	wait := func(when string, done func(n int64) bool) {
		t.Helper()
		for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			n := client.DBSize(t.Context()).Val()
			if done(n) {
				return
			}
			if time.Since(begin) > 30*time.Second {
				t.Fatalf("%s, the root has %d keys; %+v", when, n, b.Stats())
			}
		}
	}
	wait("at first", func(n int64) bool { return n > keys })
	for range 2 {
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		wait("in the middle", func(n int64) bool { return n > keys/10 })
	}
	wait("in the end", func(n int64) bool { return n > keys && b.Stats().Unsent["root"] == 0 })
	if st := b.Stats(); st.Losses["root"] < 1 || st.Failed > 0 {
		t.Errorf("%+v; want a loss, and no failed round trips", st)
	}
}
