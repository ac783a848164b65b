package weirdebug

import (
	"sync/atomic"
	"time"
)

// history is how many whole seconds are kept.
const history = 60

// series is a set of counters, with their values at the beginning of each of the last seconds.
type series struct {
	totals  []atomic.Int64
	seconds [history + 1][]int64 // by the second, modulo; nil is all zeros
}

func newSeries(counters int) *series { return &series{totals: make([]atomic.Int64, counters)} }

func (s *series) add(counter int, n int64) { s.totals[counter].Add(n) }

// save stores the values of the counters at the beginning of a second.
func (s *series) save(second int64) {
	counts := &s.seconds[second%int64(len(s.seconds))]
	if *counts == nil {
		*counts = make([]int64, len(s.totals))
	}
	for i := range s.totals {
		(*counts)[i] = s.totals[i].Load()
	}
}

// perSecond returns by how much the counters from i to j grew in each of the last whole
// seconds before now, the oldest first.
func (s *series) perSecond(now int64, i, j int) []int64 {
	counts := make([]int64, history)
	for k := range counts {
		second := now - history + int64(k)
		counts[k] = s.sum(second+1, i, j) - s.sum(second, i, j)
	}
	return counts
}

// inHistory returns by how much counter i grew in the whole history before now.
func (s *series) inHistory(now int64, i int) int64 {
	return s.sum(now, i, i+1) - s.sum(now-history, i, i+1)
}

func (s *series) sum(second int64, i, j int) (sum int64) {
	counts := s.seconds[second%int64(len(s.seconds))]
	for ; counts != nil && i < j; i++ {
		sum += counts[i]
	}
	return sum
}

// begin saves all series if a second has begun since the last event. Events of a second that
// is over count in the current one.
func (o *Observer) begin(second int64) {
	if second <= o.second.Load() {
		return
	}
	o.saving.Lock()
	defer o.saving.Unlock()
	last := o.second.Load()
	if second <= last {
		return
	}
	o.forEach(func(s *series) {
		for t := max(last+1, second-history); t <= second; t++ {
			s.save(t)
		}
	})
	o.second.Store(second)
}

func (o *Observer) forEach(do func(*series)) {
	for _, s := range o.ops {
		do(s)
	}
	for _, s := range o.decided.Values() {
		do(s)
	}
	for _, s := range o.trips.Values() {
		do(s)
	}
}

// bounds are the upper bounds of durations: 1, 2 and 5 times powers of ten, from 1 µs to 10 s.
var bounds = func() (durations []time.Duration) {
	for d := time.Microsecond; d < 10*time.Second; d *= 10 {
		durations = append(durations, d, 2*d, 5*d)
	}
	return append(durations, 10*time.Second)
}()

// buckets is the number of buckets: one more for longer durations.
var buckets = len(bounds) + 1

func bucketOf(d time.Duration) int {
	for i, bound := range bounds {
		if d <= bound {
			return i
		}
	}
	return len(bounds)
}

// quantile returns the least bound that part of the durations in the history did not exceed,
// or 0 if the history is empty. The buckets begin at first. Durations above all bounds count
// as the last bound.
func (s *series) quantile(now int64, first int, part float64) time.Duration {
	counts, total := make([]int64, buckets), int64(0)
	for i := range counts {
		counts[i] = s.inHistory(now, first+i)
		total += counts[i]
	}
	if total == 0 {
		return 0
	}
	sum := int64(0)
	for i, n := range counts {
		if sum += n; float64(sum) >= part*float64(total) {
			return bounds[min(i, len(bounds)-1)]
		}
	}
	return bounds[len(bounds)-1]
}
