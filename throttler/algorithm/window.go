package algorithm

import (
	"encoding/binary"
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Window is a State of one fixed window, as nearly all are. A store may keep it in four
// numbers and decide without an executor.
type Window struct {
	Length  int64 // ms
	Aligned bool
	ResetAt int64 // ms since the epoch
	Used    int64
}

// IsOf reports whether w counts for l: whether l is a fixed window of w's length and alignment.
func (w *Window) IsOf(l *quota.Limit) bool {
	return l.Algorithm == quota.FixedWindow && l.Calendar.Period == 0 && int64(l.Window) == w.Length*int64(time.Millisecond) && l.Aligned == w.Aligned
}

// Take decides, while w is open, as [Take] does about one charge of cost, more than 0, under
// quota. If cost fits, Take charges w and returns 0. Otherwise it returns a RetryAt.
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

// ReadWindow returns the window stored in b, and reports whether b is the stored form of one
// window and nothing else.
func ReadWindow(b []byte) (w Window, ok bool) {
	if len(b) != windowForm || kind(b[0]) != kindsOf[0][quota.FixedWindow] && kind(b[0]) != kindsOf[1][quota.FixedWindow] {
		return w, false
	}
	number := func(end, size int) int64 {
		return int64(binary.BigEndian.Uint64(b[end-8:]) << (64 - 8*size) >> (64 - 8*size))
	}
	return Window{
		Length: number(kindBytes+windowBytes+1, windowBytes+1) >> 8, Aligned: kinds[b[0]].aligned,
		ResetAt: number(windowForm-countBytes, instantBytes), Used: number(windowForm, countBytes),
	}, true
}

// windowForm is the length of the stored form of a window.
const windowForm = kindBytes + windowBytes + instantBytes + countBytes

// Write updates b, the stored form that w was read from, after a Take.
func (w *Window) Write(b []byte) {
	last := b[windowForm-8 : windowForm]
	binary.BigEndian.PutUint64(last, uint64(last[0])<<56|uint64(w.Used))
}

// record returns w as a record.
func (w *Window) record() record {
	return record{kind: kindsOf[index(w.Aligned)][quota.FixedWindow], window: w.Length, instant: instant{ms: w.ResetAt}, count: w.Used}
}
