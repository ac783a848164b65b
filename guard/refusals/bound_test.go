package refusals_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

func take(t testing.TB, b driver.Backend, p *throttler.Policy, key string) {
	t.Helper()
	r := driver.NewRequest(t0.UnixMilli(), throttler.Charge{Policy: p, Key: key, Cost: 1, Partition: key})
	if d, err := b.Take(t.Context(), r); err != nil || d.Allowed {
		t.Fatalf("allowed %v, error %v; want a refusal", d.Allowed, err)
	}
}

func TestMaxKeys(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 3, 4, 5, 100, 1000} {
		b := open(t, refusing{}, &refusals.Options{MaxKeys: maxKeys, MaxAge: time.Hour})
		for i := range 20 * maxKeys {
			take(t, b, core, fmt.Sprint("client-", i))
			take(t, b, core, fmt.Sprint("client-", i)) // has answered: these too make room
		}
		s := b.Stats()
		if s.Keys > int64(maxKeys) || s.Keys < int64(maxKeys)*3/4 || s.Answered != 20*int64(maxKeys) {
			t.Errorf("MaxKeys %d: got %+v", maxKeys, s)
		}
		if s.PushedOut != s.Asked-s.Keys {
			t.Errorf("MaxKeys %d: %+v; want as many pushed out as are not there any more", maxKeys, s)
		}
	}
}

// A new refusal replaces one that has ended, otherwise the oldest that has answered nothing,
// otherwise the oldest.
func TestWhichIsPushedOut(t *testing.T) {
	b := open(t, refusing{}, &refusals.Options{MaxKeys: 4, MaxAge: time.Minute})
	var elapsed time.Duration
	b.SetElapsed(func() time.Duration { return elapsed })
	fill := func(keys ...string) {
		for _, key := range keys {
			elapsed++
			take(t, b, core, key)
		}
	}
	// remembered takes keys. They must be answered from memory, and the Backend must have
	// pushed out pushedOut refusals so far.
	remembered := func(pushedOut int64, keys ...string) {
		t.Helper()
		before := b.Stats()
		fill(keys...)
		if s := b.Stats(); s.Asked != before.Asked || s.PushedOut != pushedOut {
			t.Fatalf("got %+v, before it %+v; want %q from memory and %d pushed out", s, before, keys, pushedOut)
		}
	}
	fill("a", "b", "c", "d")
	remembered(0, "a", "c")
	fill("e") // for b, the oldest that has answered nothing
	remembered(1, "a", "c", "d", "e")
	fill("f") // for a, the oldest
	remembered(2, "c", "d", "e", "f")
	fill("g") // for c
	remembered(3, "d", "e", "f", "g")
	elapsed += time.Minute
	fill("h", "i", "j", "k") // for the ended ones
	remembered(3, "h", "i", "j", "k")
}

// ending refuses until the present if the key is "ending".
type ending struct{ refusing }

func (e ending) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := e.refusing.Take(ctx, r)
	if r.Charges()[0].Key == "ending" {
		d.Results()[0].RetryAt = r.Now
	}
	return d, err
}

// A refusal that has ended already pushes out nothing.
func TestEndedIsNotStored(t *testing.T) {
	b := open(t, ending{}, &refusals.Options{MaxKeys: 1, MaxAge: time.Hour})
	for range 3 {
		take(t, b, core, "alice")
		take(t, b, core, "ending")
	}
	if s := b.Stats(); s.Answered != 2 || s.PushedOut != 0 {
		t.Errorf("got %+v; want alice refused from memory twice", s)
	}
}

// Keys that come once push out each other, but no key that comes again.
func TestFloodOfKeys(t *testing.T) {
	b := open(t, refusing{}, &refusals.Options{MaxKeys: 256, MaxAge: time.Hour})
	take(t, b, core, "alice")
	take(t, b, core, "alice")
	for i := range 20_000 {
		take(t, b, core, fmt.Sprint("invented-", i))
	}
	before := b.Stats().Answered
	take(t, b, core, "alice")
	if s := b.Stats(); s.Answered != before+1 || s.Keys > 256 {
		t.Errorf("got %+v; want alice's refusal remembered still", s)
	}
}

// TestBytes checks the sizes that Options.MaxKeys and MaxBytes state, by the heap.
func TestBytes(t *testing.T) {
	const maxKeys = 1024
	three := policy("three", fivePerMinute, throttler.Limit{Quota: 1, Window: time.Second}, throttler.Limit{Quota: 1, Window: time.Hour})
	for _, c := range []struct {
		name  string
		p     *throttler.Policy
		bytes int // of a key
		most  float64
	}{
		{"one limit", core, 20, 1024},
		{"three limits", three, 20, 2048},
		{"long keys", three, 2000, refusals.MaxBytes + 512},
	} {
		before := heap()
		b := open(t, refusing{}, &refusals.Options{MaxKeys: maxKeys, MaxAge: time.Hour})
		empty := float64(heap()-before) / maxKeys
		for i := range 8 * maxKeys {
			// Part of a longer string, which the refusal must not keep.
			take(t, b, c.p, fmt.Sprintf("%020d%s", i, strings.Repeat("x", 4000))[:c.bytes])
		}
		each := float64(heap()-before)/maxKeys - empty
		s := b.Stats()
		t.Logf("%s: %.0f bytes a key, and %.0f from the start; %d keys", c.name, each, empty, s.Keys)
		if each > c.most || empty > 64 || s.Keys < maxKeys*9/10 {
			t.Errorf("%s: want at most %.0f, and 64 from the start", c.name, c.most)
		}
		runtime.KeepAlive(b)
	}
}

// heap returns the bytes that are in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAllocations(t *testing.T) {
	b := open(t, refusing{}, &refusals.Options{MaxAge: time.Hour})
	r := driver.NewRequest(t0.UnixMilli(), throttler.Charge{Policy: core, Key: "alice", Cost: 1, Partition: "alice"})
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		if d, err := b.Take(ctx, r); err != nil || d.Allowed {
			t.Fatal(d, err)
		}
	}); n != 0 {
		t.Errorf("an answer from memory makes %v allocations, want none", n)
	}
}
