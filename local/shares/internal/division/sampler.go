package division

import (
	"cmp"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sort"
	"sync/atomic"
	"time"
)

// DefaultSamples is the default size of a Sampler.
const DefaultSamples = 4096

// A Sampler measures the recent demand for one quota, and for its busiest keys. Its
// methods may be called concurrently, and take no lock.
//
// While a window has at most as many events as the Sampler keeps, it keeps all and the
// demand is exact. Beyond that it keeps one of 2, 4, 8, … events, at random, and counts
// it for as many: with k kept, the error is about 1/√k, 3 % for 1,000. An event that is
// not kept costs a random number and a comparison.
type Sampler struct {
	start  time.Time
	window int64         // ms
	skip   atomic.Uint64 // an event is kept with probability 1/(skip+1); skip+1 is a power of two
	next   atomic.Uint64 // the number of events kept; the next one's index
	slots  []slot        // a power of two
}

// slot is an event. Its two words are written one after the other: if the ring is
// overwritten while a reader reads, it may see words of two events. That is one sample
// of thousands.
type slot struct {
	demand atomic.Uint64 // ms since start in the upper half, float32 units in the lower
	key    atomic.Uint64
}

// NewSampler returns a Sampler of the demand within window, from a millisecond to an
// hour. size is the number of events that it keeps, rounded up to a power of two, at 16
// bytes each; if zero, DefaultSamples.
func NewSampler(window time.Duration, size int) *Sampler {
	if size <= 0 {
		size = DefaultSamples
	}
	size = 1 << bits.Len(uint(min(max(size, 64), 1<<24)-1))
	window = min(max(window, time.Millisecond), time.Hour)
	start := time.Now().Round(0) // by the wall clock, as the times of events are
	return &Sampler{window: window.Milliseconds(), slots: make([]slot, size), start: start}
}

var draw = rand.Uint64 // the simulations seed it

// Add records that units were asked for. key is a hash of the key, the same in all
// processes.
func (s *Sampler) Add(now time.Time, key uint64, units int64) {
	skip := s.skip.Load()
	if skip != 0 && draw()&skip != 0 {
		return
	}
	s.keep(now, key, float32(units)*float32(skip+1))
}

func (s *Sampler) keep(now time.Time, key uint64, units float32) {
	instant := s.ms(now)
	i := s.next.Add(1) - 1
	slot := &s.slots[i&uint64(len(s.slots)-1)]
	oldest := slot.demand.Swap(uint64(instant)<<32 | uint64(math.Float32bits(units)))
	slot.key.Store(key)

	// The ring must be longer than a window: if the overwritten event is still within
	// the window, keep half as many. Each half of the ring decides once, so that a burst
	// doesn't double again before the first doubling has had an effect.
	if i >= uint64(len(s.slots)) && i&uint64(len(s.slots)/2-1) == 0 && s.age(instant, oldest) < s.window {
		s.skip.Store(min(s.skip.Load()<<1|1, 1<<30-1))
	}
}

// ms returns the milliseconds from start to now. They wrap after 49 days, which empties
// the window once.
func (s *Sampler) ms(now time.Time) uint32 {
	return uint32(now.Sub(s.start).Milliseconds())
}

// age returns the age of an event in ms. The near future is now: calls overtake each
// other, and clocks step back.
func (s *Sampler) age(instant uint32, demand uint64) int64 {
	elapsed := instant - uint32(demand>>32)
	if future := -elapsed; int64(future) < s.window {
		return 0
	}
	return int64(elapsed)
}

// Demand returns the demand of the window that ends now, and of the keys with the highest
// demand, at most keys of them.
func (s *Sampler) Demand(now time.Time, keys int) Demand {
	instant, next := s.ms(now), s.next.Load()
	size := uint64(len(s.slots))
	first := next - min(next, size)
	// Events are in the order of time, except that concurrent calls may change places.
	n := sort.Search(int(next-first), func(k int) bool {
		return s.age(instant, s.slots[(first+uint64(k))&(size-1)].demand.Load()) < s.window
	})

	var d Demand
	units := make(map[uint64]float64)
	for i := first + uint64(n); i < next; i++ {
		slot := &s.slots[i&(size-1)]
		u := float64(math.Float32frombits(uint32(slot.demand.Load())))
		d.Units += u
		units[slot.key.Load()] += u
	}
	if length := next - first - uint64(n); length < size/8 {
		s.skip.Store(s.skip.Load() >> 1) // the demand has fallen
	}

	perSecond := 1000 / float64(s.window)
	d.Units *= perSecond
	for key, u := range units {
		u *= perSecond
		if key != 0 {
			d.Keys = append(d.Keys, KeyDemand{key, u})
		}
	}
	slices.SortFunc(d.Keys, func(a, b KeyDemand) int {
		return cmp.Or(cmp.Compare(b.Units, a.Units), cmp.Compare(a.Key, b.Key))
	})
	d.Keys = slices.Clip(d.Keys[:min(max(keys, 0), len(d.Keys))])
	return d
}
