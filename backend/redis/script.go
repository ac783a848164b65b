package redisbackend

import (
	"context"
	"strconv"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// What goes to the scripts that decide and comes back; lua/decide.lua describes
// both.

// Operations.
const (
	opTake   = 0
	opSettle = 1

	hasLog = 2 // more, if a limit is a sliding log
)

// newTake returns the job of a take.
func (b *Backend) newTake(ctx context.Context, r driver.Request) *job {
	charges := r.Charges()
	j := b.newJob(ctx, charges)
	buf := b.appendHead(j.buf, r.Now, opTake, charges)
	for i := range charges {
		c := &charges[i]
		buf = algorithm.AppendUint(buf, 7, c.Cost)
		buf = append(buf, byte(len(c.Policy.Limits)))
		for k := range c.Policy.Limits {
			buf = algorithm.AppendLimit(buf, &c.Policy.Limits[k])
		}
	}
	if isSimple(charges) {
		j.kind = simple
		l := &charges[0].Policy.Limits[0]
		buf = appendBounds(buf, l, r.Now, charges[0].Cost)
	}
	j.packed, j.buf = buf[len(j.buf):], buf
	return j
}

// newSettlement returns the job of a settlement.
func (b *Backend) newSettlement(ctx context.Context, s driver.Settlement) *job {
	charged := s.Charged.Request
	charges, results := charged.Charges(), s.Charged.Results()
	j := b.newJob(ctx, charges)
	buf := b.appendHead(j.buf, s.Now, opSettle, charges)
	for i := range charges {
		c := &charges[i]
		buf = algorithm.AppendUint(buf, 7, c.Cost)
		buf = algorithm.AppendUint(buf, 7, s.Costs[i])
		buf = algorithm.AppendUint(buf, 6, charged.Now)
		buf = append(buf, byte(len(c.Policy.Limits)))
		for k := range c.Policy.Limits {
			buf = algorithm.AppendLimit(buf, &c.Policy.Limits[k])
			buf = algorithm.AppendUint(buf, 6, results[k].Mark.At)
			buf = algorithm.AppendUint(buf, 7, results[k].Mark.Fraction)
		}
		results = results[len(c.Policy.Limits):]
	}
	j.packed, j.buf = buf[len(j.buf):], buf
	return j
}

func (b *Backend) appendHead(buf []byte, now int64, op byte, charges []quota.Charge) []byte {
	buf = append(buf, 1) // it is made once; see flight.argsOf
	buf = algorithm.AppendUint(buf, 6, now)
	buf = algorithm.AppendUint(buf, 4, b.margin)
	for i := range charges {
		for k := range charges[i].Policy.Limits {
			if charges[i].Policy.Limits[k].Algorithm == quota.SlidingLog {
				op |= hasLog
			}
		}
	}
	return append(buf, op, byte(len(charges)))
}

// isSimple reports whether fast.lua decides a take of charges, in most cases.
func isSimple(charges []quota.Charge) bool {
	if len(charges) != 1 || len(charges[0].Policy.Limits) != 1 {
		return false
	}
	l := &charges[0].Policy.Limits[0]
	return l.Algorithm == quota.FixedWindow && l.Window < shortWindow
}

// shortWindow is longer than the windows that fast.lua knows.
const shortWindow = 1 << 28 * time.Millisecond

// appendBounds appends what alone.lua and fast.lua compare with what is stored of a fixed
// window, l, by a take at now. All of it is digits, in the order of numbers:
//
//	19  the window is open if the state is above this
//	4   and below this
//	4   one unit fits if the last 4 of the state, what is used, are at most this
//
// The last 4 are blank unless the take is of one unit. If the window is never stored as
// digits, none are above the first.
func appendBounds(b []byte, l *quota.Limit, now, cost int64) []byte {
	const mostUsed = 9999
	w := algorithm.Window{Length: l.Window.Milliseconds(), Aligned: l.Aligned, ResetAt: now, Used: mostUsed}
	start := len(b)
	ended, ok := algorithm.AppendDigits(b, w)
	if ok {
		w.ResetAt += w.Length
		_, ok = algorithm.AppendDigits(ended, w)
	}
	if ok {
		code := 100*int64(ended[start]-'0') + 10*int64(ended[start+1]-'0') + int64(ended[start+2]-'0')
		b = strconv.AppendInt(ended, 10*(code+1), 10)
	} else {
		b = append(b, "99999999999999999990000"...)
	}
	if cost != 1 {
		return append(b, "    "...)
	}
	room := strconv.AppendInt(b, 10_000+min(l.Quota, mostUsed)-1, 10) // with a 1 in front
	return append(b, room[len(b)+1:]...)
}
