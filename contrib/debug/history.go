package weirdebug

import (
	"sync/atomic"
	"time"
)

// history is how many whole seconds are kept.
const history = 60

// series is a set of counters, with their values at the beginning of each of the last seconds.
type series struct {
	totals []atomic.Int64
	past   [history + 1][]int64 // by the second, modulo; nil is all zeros
}

func newSeries(counters int) *series { return &series{totals: make([]atomic.Int64, counters)} }

func (s *series) add(counter int, n int64) { s.totals[counter].Add(n) }

// save stores the values of the counters at the beginning of a second.
func (s *series) save(second int64) {
	at := &s.past[second%int64(len(s.past))]
	if *at == nil {
		*at = make([]int64, len(s.totals))
	}
	for i := range s.totals {
		(*at)[i] = s.totals[i].Load()
	}
}

// perSecond returns by how much the counters from i to j grew in each of the last whole
// seconds before now, the oldest first.
func (s *series) perSecond(now int64, i, j int) []int64 {
	all := make([]int64, history)
	for k := range all {
		second := now - history + int64(k)
		all[k] = s.at(second+1, i, j) - s.at(second, i, j)
	}
	return all
}

// inHistory returns by how much counter i grew in the whole history before now.
func (s *series) inHistory(now int64, i int) int64 {
	return s.at(now, i, i+1) - s.at(now-history, i, i+1)
}

func (s *series) at(second int64, i, j int) (sum int64) {
	past := s.past[second%int64(len(s.past))]
	for ; past != nil && i < j; i++ {
		sum += past[i]
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
	o.each(func(s *series) {
		for at := max(last+1, second-history); at <= second; at++ {
			s.save(at)
		}
	})
	o.second.Store(second)
}

func (o *Observer) each(do func(*series)) {
	for _, s := range o.ops {
		do(s)
	}
	for _, s := range o.decided.All() {
		do(s)
	}
	for _, s := range o.trips.All() {
		do(s)
	}
}

// bounds are the upper bounds of durations: 1, 2 and 5 times powers of ten, from 1 µs to 10 s.
var bounds = func() (all []time.Duration) {
	for d := time.Microsecond; d < 10*time.Second; d *= 10 {
		all = append(all, d, 2*d, 5*d)
	}
	return append(all, 10*time.Second)
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
