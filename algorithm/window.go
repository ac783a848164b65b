package algorithm

import (
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
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
func (w *Window) IsOf(l *quota.Limit) bool {
	return l.Algorithm == quota.FixedWindow && l.Calendar.Period == 0 && int64(l.Window) == w.Length*int64(time.Millisecond) && l.Aligned == w.Aligned
}

// Take decides, while w is open, as [Take] does about one charge of that cost, more
// than 0, under quota. It charges w if that fits, and returns 0, or else the RetryAt
// of a Result.
func (w *Window) Take(quota, cost int64) (retryAt int64) {
	switch {
	case cost > quota:
		return driver.NeverFits
	case cost > quota-w.Used:
		return w.ResetAt
	}
	w.Used += cost
	return 0
}

// Window returns s as one window, and reports whether it is one.
func (s *State) Window() (w Window, ok bool) {
	if len(s.records) != 1 || s.last.generation != 0 {
		return Window{}, false
	}
	r := &s.records[0]
	k := &kinds[r.kind]
	if k.algorithm != quota.FixedWindow || k.calendar || r.endsAt != 0 {
		return Window{}, false
	}
	return Window{Length: r.window, Aligned: k.aligned, ResetAt: r.at, Used: r.count}, true
}

// SetWindow makes s one window. It reuses the memory of s, which must share it
// with no other State.
func (s *State) SetWindow(w Window) {
	s.last = reset{}
	s.records = append(s.records[:0], record{
		kind: kindsOf[index(w.Aligned)][quota.FixedWindow], window: w.Length, instant: instant{at: w.ResetAt}, count: w.Used,
	})
}
