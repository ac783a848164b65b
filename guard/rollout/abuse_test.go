package rollout_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/throttler/driver"
)

// forgetful allows everything and keeps nothing.
type forgetful struct{ handoff.Store }

func (forgetful) TakeAt(_ context.Context, r driver.Request, _ *handoff.Placement) (driver.Decision, error) {
	return driver.NewDecision(r), nil
}

// The memory for partitions is bounded in their number and in bytes, however long their names
// are.
func TestRoutesAreBounded(t *testing.T) {
	const maxKeys, keys, each = 1 << 12, 1 << 13, 250
	f := newFlagged(t, "old", map[string]handoff.Store{"old": forgetful{memorybackend.NewDefault()}}, rollout.Options{Refresh: time.Minute, MaxKeys: maxKeys})
	before := heap()
	long := strings.Repeat("x", 8000)
	for i := range keys {
		if _, err := f.Take(t.Context(), hourly.Charge(fmt.Sprint(i, long))); err != nil {
			t.Fatal(err)
		}
	}
	grown := heap() - before
	t.Logf("%d bytes for each of %d keys", grown/maxKeys, maxKeys)
	if grown > maxKeys*each {
		t.Errorf("%d bytes after %d keys, want at most %d for each of %d", grown, keys, each, maxKeys)
	}
	runtime.KeepAlive(f)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A flood of new keys, on both sides of a flip and back, pushes out routes and claims.
// It gives neither a victim nor a newcomer more than its quota, and counts no victim as
// lost.
func TestFloodOfKeysWhileCountsMove(t *testing.T) {
	const maxKeys, victims, flood = 512, 50, 2500
	backends := make(map[string]handoff.Store)
	for _, name := range []string{"old", "new"} {
		b, err := memorybackend.New(&memorybackend.Options{MaxKeys: maxKeys})
		if err != nil {
			t.Fatal(err)
		}
		backends[name] = b
	}
	f := newFlagged(t, "old", backends, rollout.Options{Refresh: time.Minute, MaxKeys: 128})
	n := 0
	attack := func() {
		for range flood {
			n++
			if _, err := f.Take(t.Context(), hourly.Charge(fmt.Sprint("invented", n))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range victims {
		want(t, "a victim, at first", f.allowed(t, hourly.Charge(fmt.Sprint("victim", i))), 5)
	}
	for i, value := range []string{"old", "new", "new", "old"} {
		f.flip(value)
		attack()
		for v := range victims {
			want(t, fmt.Sprint("a victim in a flood, on ", value), f.allowed(t, hourly.Charge(fmt.Sprint("victim", v))), 0)
		}
		if n := f.allowed(t, hourly.Charge(fmt.Sprint("newcomer", i))); n > 5 {
			t.Errorf("a newcomer in a flood, on %s: %d were allowed, of a quota of 5", value, n)
		}
	}
	if s := f.rollout.Stats(); s.Lost != 0 || s.PassedOver != 0 {
		t.Errorf("%+v; want nothing lost", s)
	}
}
