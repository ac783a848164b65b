package division

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
)

// A window with no more events than the sampler keeps is exact, and ends at its edge.
func TestSamplerIsExactWhenQuiet(t *testing.T) {
	s := NewSampler(2*time.Second, 128)
	at := t0
	for i := range 1000 { // 50 a second, of 3 units
		at = t0.Add(time.Duration(i) * 20 * time.Millisecond)
		s.Add(at, uint64(1+i%4), 3)
	}
	d := s.Demand(at, 2)
	if d.Units != 150 || len(d.Keys) != 2 || d.Keys[0] != (KeyDemand{1, 37.5}) {
		t.Errorf("Demand = %+v; want 150 a second, a quarter of it for each of 4 keys", d)
	}
	if d := s.Demand(at.Add(time.Second), 0); d.Units != 75 || len(d.Keys) != 0 {
		t.Errorf("a second later: %+v; want 75, and no keys", d)
	}
	if d := s.Demand(at.Add(2*time.Second), 8); d.Units != 0 || d.Keys != nil {
		t.Errorf("a window later: %+v; want nothing", d)
	}
	if d := s.Demand(at.Add(60*24*time.Hour), 8); d.Units != 0 {
		t.Errorf("after 60 days: %+v; want nothing", d)
	}
	if d := s.Demand(at.Add(-10*time.Millisecond), 8); d.Units != 151.5 { // and one of the future
		t.Errorf("by a clock that stepped back by 10 ms: %+v; want 151.5", d)
	}
}

func seedSamplers(t testing.TB, seed uint64) {
	draw = rand.New(rand.NewPCG(seed, 2)).Uint64
	t.Cleanup(func() { draw = rand.Uint64 })
}

// Of more events, the sampler keeps one of several, and the demand is right within the stated
// error. When events are few again, it is exact.
func TestSamplerOfManyEvents(t *testing.T) {
	s := NewSampler(time.Second, 1024)
	const perMs = 50
	random := testseed.Rand(t, 0)
	seedSamplers(t, testseed.Of(t))
	at := t0
	step := func() {
		at = at.Add(time.Millisecond)
		for range perMs {
			key := uint64(1)
			if random.IntN(4) == 0 {
				key = 2 + random.Uint64N(1000)
			}
			s.Add(at, key, 1)
		}
	}
	for range 3000 {
		step()
	}
	var off float64
	for range 50 { // many readings: one may be far off
		for range 100 {
			step()
		}
		d := s.Demand(at, 3)
		off += math.Abs(d.Units/(1000*perMs) - 1)
		if d.Keys[0].Key != 1 || math.Abs(d.Keys[0].Units/(750*perMs)-1) > 0.5 {
			t.Errorf("the busiest keys are %+v; want 1 with %d", d.Keys, 750*perMs)
		}
	}
	t.Logf("mean error %.1f %% with one of %d kept", 100*off/50, s.skip.Load()+1)
	if off/50 > 0.1 {
		t.Errorf("the mean error is %.0f %%; want some 4 %%", 100*off/50)
	}
	for range 40 {
		at = at.Add(500 * time.Millisecond)
		s.Add(at, 1, 1)
		s.Demand(at, 0)
	}
	if d := s.Demand(at, 1); d.Units != 2 {
		t.Errorf("when it is quiet again: %+v; want 2 a second", d)
	}
}

// Events have times of the wall clock, and Demand has the time of time.Now. Both are compared
// with start by the wall clock: by the monotonic clock, Demand would no longer find them after
// the wall clock was set.
func TestSamplerStartsByTheWallClock(t *testing.T) {
	if s := NewSampler(time.Second, 0); s.start != s.start.Round(0) {
		t.Errorf("start is %v; want no monotonic reading", s.start)
	}
}

func TestSamplerConcurrently(t *testing.T) {
	s := NewSampler(time.Minute, 1<<16)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 1000 {
				s.Add(t0, 1, 1)
			}
		})
	}
	for range 10 {
		s.Demand(t0, 5)
	}
	wait.Wait()
	if d := s.Demand(t0, 1); math.Abs(d.Units-8000.0/60) > 1e-9 {
		t.Errorf("Demand = %+v; want 8000 a minute", d)
	}
}

// BenchmarkSampler measures events that are not kept, and events that are.
func BenchmarkSampler(b *testing.B) {
	now := time.Now()
	b.Run("busy", func(b *testing.B) { // one of 4,096 is kept
		s := NewSampler(time.Second, 0)
		s.skip.Store(1<<12 - 1)
		for b.Loop() {
			s.Add(now, 1, 1)
		}
	})
	b.Run("busy parallel", func(b *testing.B) {
		s := NewSampler(time.Second, 0)
		s.skip.Store(1<<12 - 1)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				s.Add(now, 1, 1)
			}
		})
	})
	b.Run("quiet", func(b *testing.B) { // each is kept
		s := NewSampler(time.Millisecond, 0)
		at := now
		for b.Loop() {
			at = at.Add(time.Microsecond)
			s.Add(at, 1, 1)
		}
	})
	b.Run("demand", func(b *testing.B) {
		s, random := NewSampler(time.Hour, 0), testseed.Rand(b, 0)
		for range DefaultSamples {
			s.Add(now, random.Uint64N(1000), 1)
		}
		for b.Loop() {
			s.Demand(now, 8)
		}
	})
}
