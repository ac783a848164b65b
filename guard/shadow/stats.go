package shadow

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler/decision"
)

// Stats has counts since New.
type Stats struct {
	Compared int64 `json:"compared"` // takes that both decided
	Agreed   int64 `json:"agreed"`   // in everything below

	OnlyServingAllowed   int64 `json:"only_serving_allowed"`
	OnlyCandidateAllowed int64 `json:"only_candidate_allowed"`
	RemainingDiffers     int64 `json:"remaining_differs"` // of one limit or more
	ResetDiffers         int64 `json:"reset_differs"`     // of one limit or more

	NotInStep int64 `json:"not_in_step"` // takes in a window that the candidate missed a part of
	Failed    int64 `json:"failed"`      // the candidate returned an error
	Dropped   int64 `json:"dropped"`     // the queue was full: the candidate did not receive it
	Unsettled int64 `json:"unsettled"`   // settlements of takes that the candidate never made, or has already forgotten

	Serving   Latency `json:"serving"`
	Candidate Latency `json:"candidate"`
}

// Latency is the duration of takes. Each quantile is rounded up by at most a
// quarter.
type Latency struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

// Stats returns the counts so far.
func (b *Backend) Stats() Stats {
	s := b.stats.Now()
	s.Serving, s.Candidate = b.took.serving.quantiles(), b.took.candidate.quantiles()
	return s
}

// compare counts, and reports whether two decisions, about counts in step, differ.
func (s *Stats) compare(inStep bool, serving, candidate decision.Decision) bool {
	if !inStep {
		s.NotInStep++
		return false
	}
	remaining, reset := false, false
	for i := range serving.Limits() {
		s, o := serving.Limit(i), candidate.Limit(i)
		remaining = remaining || s.Remaining != o.Remaining
		reset = reset || !s.ResetAt.Equal(o.ResetAt)
	}
	s.Compared++
	switch {
	case serving.Allowed && !candidate.Allowed:
		s.OnlyServingAllowed++
	case candidate.Allowed && !serving.Allowed:
		s.OnlyCandidateAllowed++
	}
	if remaining {
		s.RemainingDiffers++
	}
	if reset {
		s.ResetDiffers++
	}
	if remaining || reset || serving.Allowed != candidate.Allowed {
		return true
	}
	s.Agreed++
	return false
}

// latencies counts durations by their size: four classes for each power of two
// of nanoseconds.
type latencies struct {
	classes [4 * 64]atomic.Int64
	max     atomic.Int64
}

func (l *latencies) note(d time.Duration) {
	l.classes[classOf(d)].Add(1)
	for {
		highest := l.max.Load()
		if int64(d) <= highest || l.max.CompareAndSwap(highest, int64(d)) {
			return
		}
	}
}

// classOf returns the class of d: its highest bit and the two after it.
func classOf(d time.Duration) int {
	n := uint64(max(d, 4))
	power := bits.Len64(n) - 1
	return 4*power + int(n>>(power-2)&3)
}

// highestOf returns the longest duration of a class.
func highestOf(class int) time.Duration {
	power := class / 4
	return time.Duration(1)<<power + time.Duration(class%4+1)<<(power-2) - 1
}

func (l *latencies) quantiles() Latency {
	var total int64
	for i := range l.classes {
		total += l.classes[i].Load()
	}
	longest := time.Duration(l.max.Load())
	quantileOf := func(quantile int64) time.Duration {
		rank := (total*quantile + 99) / 100
		for i := range l.classes {
			if rank -= l.classes[i].Load(); rank <= 0 && total > 0 {
				return min(highestOf(i), longest)
			}
		}
		return longest
	}
	return Latency{P50: quantileOf(50), P99: quantileOf(99), Max: longest}
}
