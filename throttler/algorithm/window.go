package algorithm

import (
	"encoding/binary"
	"slices"
	"strconv"
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

// AppendDigits appends the digits of w to b, and reports whether w can be stored as digits.
func AppendDigits(b []byte, w Window) ([]byte, bool) {
	code, ok := w.code()
	since := w.ResetAt - digitsEpoch
	if !ok || since < 0 || since >= digitsSpan || w.Used >= digitsCount {
		return b, false
	}
	n := code*digitsSpan + since
	return strconv.AppendInt(b, n*digitsCount+w.Used, 10), true
}

// code returns the code of w's length and kind, and reports whether there is one.
func (w *Window) code() (code int64, ok bool) {
	for i, unit := range digitsUnits {
		if w.Length > 99*unit {
			continue
		}
		code = int64(i+1)*100 + w.Length/unit
		if w.Aligned {
			code += alignedCode
		}
		return code, w.Length > 0 && w.Length%unit == 0
	}
	return 0, false
}

// ReadDigits returns the window with the digits b.
func ReadDigits(b []byte) (Window, error) {
	n, err := strconv.ParseInt(string(b), 10, 64)
	code := n / (digitsSpan * digitsCount)
	w := Window{ResetAt: n/digitsCount%digitsSpan + digitsEpoch, Used: n % digitsCount}
	if code > alignedCode+99 {
		w.Aligned, code = true, code-alignedCode
	}
	if err != nil || len(b) != digits || code/100 < 1 || code/100 > int64(len(digitsUnits)) || code%100 == 0 {
		return Window{}, errMalformed(b)
	}
	w.Length = code % 100 * digitsUnits[code/100-1]
	return w, nil
}

// AppendBounds appends the bounds that single_window.lua compares with the stored digits of l,
// the only limit of a decision at now. They compare as numbers do:
//
//	19  the window is open if the state is above this
//	4   and below this
//	4   one unit fits if the last 4 of the state, the used units, are at most this
//
// The last 4 are blank unless it is a take of one unit, in mode Enforce. If the window is never
// stored as digits, the first 19 are above any digits. If l is a calendar's, or no fixed window,
// AppendBounds appends nothing.
func AppendBounds(b []byte, l *quota.Limit, now int64, unit bool) []byte {
	if !l.Algorithm.ResetsAtOnce() || !l.Calendar.IsZero() {
		return b
	}
	const mostUsed = digitsCount - 1
	w := Window{Length: l.Window.Milliseconds(), Aligned: l.Aligned, ResetAt: now, Used: mostUsed}
	b = slices.Grow(b, 64) // enough for all bounds: the caller keeps it
	start := len(b)
	digits, ok := AppendDigits(b, w)
	if ok {
		w.ResetAt += w.Length
		_, ok = AppendDigits(digits, w)
	}
	if ok {
		code := 100*int64(digits[start]-'0') + 10*int64(digits[start+1]-'0') + int64(digits[start+2]-'0')
		b = strconv.AppendInt(digits, 10*(code+1), 10)
	} else {
		b = append(b, "99999999999999999990000"...)
	}
	if !unit {
		return append(b, "    "...)
	}
	room := strconv.AppendInt(b, digitsCount+min(l.Quota, mostUsed)-1, 10) // with a leading 1
	return append(b, room[len(b)+1:]...)
}
