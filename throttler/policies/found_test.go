package policies_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// elsewhere contains the overrides that a source can find.
type elsewhere struct {
	mu    sync.Mutex
	all   map[string]policies.Override // by key
	err   error
	once  bool // its answers must not be remembered
	asked atomic.Int64
}

func (s *elsewhere) find(_ context.Context, policy, key string) (o *policies.Override, keep bool, err error) {
	s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, true, s.err
	}
	if o, ok := s.all[key]; ok && policy == "core" {
		return &o, !s.once, nil
	}
	return nil, !s.once, nil
}

func limited(key string, n int64) policies.Override {
	return policies.Override{Policy: "core", Key: key, Limits: []quota.Limit{hourly(n)}}
}

func TestOverridesAreFoundOnce(t *testing.T) {
	var table policies.Table
	at := &elsewhere{all: map[string]policies.Override{"alice": limited("alice", 10)}}
	s := table.SourceWith("remote", &policies.SourceOptions{Find: at.find})
	check := func(key string, want, wantAsked int64) {
		t.Helper()
		if n, _ := quotaOf(&table, key, t0); n != want || at.asked.Load() != wantAsked {
			t.Errorf("the quota of %s is %d after %d calls; want %d, %d", key, n, at.asked.Load(), want, wantAsked)
		}
	}
	check("alice", 1, 0) // the policy has no overrides
	edit(t, s, func(e *policies.Edit) { e.Find("core", true) })
	check("alice", 10, 1)
	check("alice", 10, 1)
	check("bob", 1, 2)
	check("bob", 1, 2) // a missing override is remembered, too
	bobs := limited("bob", 20)
	for key, o := range map[string]*policies.Override{"bob": &bobs, "alice": nil, "carol": &bobs} {
		edit(t, s, func(e *policies.Edit) { e.Learn("core", key, o) })
	}
	check("bob", 20, 2)
	check("alice", 1, 2)
	check("carol", 1, 3) // it was not remembered, so Learn does nothing
	edit(t, s, func(e *policies.Edit) { e.FindAllAgain() })
	at.once = true
	check("alice", 10, 4) // for one decision
	at.once = false
	check("alice", 10, 5)
	check("alice", 10, 5)

	at.err = errors.New("away")
	check("dora", 1, 6)
	at.err = nil
	check("dora", 1, 7)
	doras := limited("dora", 30)
	if err := s.Edit(func(e *policies.Edit) {
		e.Learn("core", "dora", &doras)
		e.Learn("core", "alice", &policies.Override{})
	}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("an override without limits: %v", err)
	}
	check("dora", 1, 7) // nothing was learned
	edit(t, s, func(e *policies.Edit) { e.Find("core", false) })
	check("alice", 1, 7)
}

// However many keys there are, a bounded number is remembered, busy keys among them.
func TestWhatWasFoundIsBounded(t *testing.T) {
	var table policies.Table
	at := &elsewhere{all: map[string]policies.Override{"busy": limited("busy", 10)}}
	s := table.SourceWith("remote", &policies.SourceOptions{Find: at.find, MaxFound: 1024})
	edit(t, s, func(e *policies.Edit) { e.Find("core", true) })
	const keys = 100_000
	for i := range keys {
		quotaOf(&table, fmt.Sprint("k", i), t0)
		if n, _ := quotaOf(&table, "busy", t0); n != 10 {
			t.Fatalf("after %d keys the quota is %d", i, n)
		}
	}
	if found := table.Status()[0].Found; found > 1024+64 || found < 512 {
		t.Errorf("%d pairs are remembered; want at most 1024", found)
	}
	if n := at.asked.Load(); n != keys+1 {
		t.Errorf("%d calls for %d keys and a busy one; want one for each", n, keys)
	}
}

// Decisions that need the same override share a call. If the context of one ends, it continues
// without the override.
func TestOneCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table policies.Table
		calls := 0
		s := table.SourceWith("remote", &policies.SourceOptions{Find: func(ctx context.Context, _, key string) (*policies.Override, bool, error) {
			calls++
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-time.After(time.Minute):
			}
			o := limited(key, 10)
			return &o, true, nil
		}})
		edit(t, s, func(e *policies.Edit) { e.Find("core", true) })
		var all sync.WaitGroup
		take := func(wait time.Duration, want int64) {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			all.Go(func() {
				defer cancel()
				if p, _, _ := table.View().Resolve(ctx, policy("core", hourly(1)), "alice", 0); p.Limits[0].Quota != want {
					t.Errorf("after %v: quota %d; want %d", wait, p.Limits[0].Quota, want)
				}
			})
			synctest.Wait()
		}
		take(time.Second, 1) // its deadline differs from the others'
		take(time.Hour, 10)
		take(time.Hour, 10)
		time.Sleep(2 * time.Second)
		take(2*time.Second, 1)
		all.Wait()
		if calls != 2 {
			t.Errorf("%d calls; want one that ended early, and one", calls)
		}
	})
}

// An edit during a call is newer than the call's answer. A decision that begins after the edit
// does not wait for that call.
func TestAChangeDuringACall(t *testing.T) {
	for name, change := range map[string]func(e *policies.Edit){
		"learn":     func(e *policies.Edit) { e.Learn("core", "alice", nil) },
		"all again": func(e *policies.Edit) { e.FindAllAgain() },
	} {
		var table policies.Table
		var s *policies.Source
		calls := 0
		s = table.SourceWith("remote", &policies.SourceOptions{Find: func(_ context.Context, _, key string) (*policies.Override, bool, error) {
			if calls++; calls > 1 {
				return nil, true, nil
			}
			edit(t, s, change)
			if n, _ := quotaOf(&table, key, t0); n != 1 || calls != 2 {
				t.Errorf("%s: quota %d after %d calls; want 1 after a second one", name, n, calls)
			}
			o := limited(key, 10) // as it was before
			return &o, true, nil
		}})
		edit(t, s, func(e *policies.Edit) { e.Find("core", true) })
		quotaOf(&table, "alice", t0)
		if n, _ := quotaOf(&table, "alice", t0); n != 1 || calls != 2 {
			t.Errorf("%s: quota %d after %d calls; want 1, as found by the second", name, n, calls)
		}
	}
}

// Clients may invent keys of any length. A long key is remembered by a short name, and is not
// taken for another key.
func TestLongKeysAreRememberedByHash(t *testing.T) {
	var table policies.Table
	long := strings.Repeat("k", 64<<10)
	hash := sha256.Sum256([]byte(long))
	at := &elsewhere{all: map[string]policies.Override{long: limited(long, 10)}}
	s := table.SourceWith("remote", &policies.SourceOptions{Find: at.find})
	edit(t, s, func(e *policies.Edit) { e.Find("core", true) })
	check := func(key string, want, wantAsked int64) {
		t.Helper()
		if n, _ := quotaOf(&table, key, t0); n != want || at.asked.Load() != wantAsked {
			t.Errorf("the quota of a key of %d bytes is %d after %d calls; want %d, %d", len(key), n, at.asked.Load(), want, wantAsked)
		}
	}
	check(long, 10, 1)
	check(long, 10, 1)
	check(string(hash[:]), 1, 2)
	edit(t, s, func(e *policies.Edit) { e.Learn("core", long, nil) })
	check(long, 1, 2)

	before := heap()
	for i := range 1000 {
		quotaOf(&table, fmt.Sprint(i, long), t0)
	}
	if grown := heap() - before; grown > 10<<20 {
		t.Errorf("1000 keys of 64 KiB are remembered in %d MB; want at most 10", grown>>20)
	}
	runtime.KeepAlive(&table)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A source without Find remembers nothing to replace or forget.
func TestNothingIsFoundWithoutFind(t *testing.T) {
	var table policies.Table
	s := table.Source("code")
	edit(t, s, func(e *policies.Edit) {
		e.Learn("core", "alice", nil)
		e.FindAllAgain()
	})
}
