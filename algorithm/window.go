package algorithm

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

// Window is a State that is one fixed window, as nearly all are. A store may keep
// it in four numbers and decide without an executor.
type Window struct {
	Length  int64 // ms
	Aligned bool
	ResetAt int64 // ms since the epoch
	Used    int64
}

// IsOf reports whether w counts for l: whether l is a fixed window of that length.
func (w *Window) IsOf(l *throttler.Limit) bool {
	return l.Algorithm == throttler.FixedWindow && int64(l.Window/time.Millisecond) == w.Length && l.Aligned == w.Aligned
}

// Take decides as [Take] does about one charge of that cost, more than 0, under
// quota, and charges w if it is allowed: result.RetryAt is then 0.
func (w *Window) Take(quota, cost, now int64) (result throttler.Result) {
	open := now < w.ResetAt
	used := int64(0)
	if open {
		used = w.Used
	}
	switch {
	case cost > quota:
		return throttler.Result{Used: used, ResetAt: max(w.ResetAt, now), RetryAt: throttler.NeverFits}
	case cost > quota-used:
		return throttler.Result{Used: used, ResetAt: w.ResetAt, RetryAt: w.ResetAt}
	case !open:
		w.ResetAt = fixedWindow{aligned: w.Aligned}.opensUntil(w.Length, now)
	}
	w.Used = used + cost
	result = throttler.Result{Used: w.Used, ResetAt: w.ResetAt, Mark: throttler.Mark{At: w.ResetAt}}
	if now >= w.ResetAt { // at the end of the year 9999, no window opens
		result.Used = 0
	}
	return result
}

// Window returns s as one window, and reports whether it is one.
func (s *State) Window() (w Window, ok bool) {
	if len(s.records) != 1 {
		return Window{}, false
	}
	r := &s.records[0]
	k := &kinds[r.kind]
	if k.algorithm != throttler.FixedWindow || r.endsAt != 0 {
		return Window{}, false
	}
	return Window{Length: r.window, Aligned: k.aligned, ResetAt: r.at, Used: r.count}, true
}

// SetWindow makes s one window. It reuses the memory of s, which must share it
// with no other State.
func (s *State) SetWindow(w Window) {
	aligned := 0
	if w.Aligned {
		aligned = 1
	}
	s.records = append(s.records[:0], record{
		kind: kindsByAlgorithm[throttler.FixedWindow][aligned], window: w.Length, at: w.ResetAt, count: w.Used,
	})
}
