package redisbackend

import (
	"context"
	"slices"
	"strconv"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// What goes to the scripts that decide; lua/decide.lua describes it.

// newTake returns the job of a take under p, nil if counts do not move.
func (b *Backend) newTake(ctx context.Context, r *driver.Request, p *handoff.Placement) *job {
	charges := r.Charges()
	j := b.newJob(ctx, charges)
	buf, shape := b.appendHead(j.buf, r.Now, p), append(j.shape[:0], takes)
	for i := range charges {
		c := &charges[i]
		buf, shape = algorithm.AppendUint(buf, 7, c.Cost), append(shape, nextCharge)
		for k := range c.Policy.Limits {
			buf, shape = appendLimit(buf, shape, &c.Policy.Limits[k])
		}
	}
	if isLone(charges) {
		buf = appendBounds(buf, &charges[0].Policy.Limits[0], r.Now, charges[0].Cost)
	}
	j.pack(buf, shape)
	return j
}

// newSettlement returns the job of a settlement under p, nil if counts do not move.
func (b *Backend) newSettlement(ctx context.Context, s *driver.Settlement, p *handoff.Placement) *job {
	charges, results := s.Charged.Request.Charges(), s.Charged.Results()
	j := b.newJob(ctx, charges)
	buf, shape := b.appendHead(j.buf, s.Now, p), append(j.shape[:0], settlements)
	for i := range charges {
		c := &charges[i]
		buf = algorithm.AppendUint(buf, 7, c.Cost)
		buf, shape = algorithm.AppendUint(buf, 7, s.Costs[i]), append(shape, nextCharge)
		for k := range c.Policy.Limits {
			buf, shape = appendLimit(buf, shape, &c.Policy.Limits[k])
			buf = algorithm.AppendUint(buf, 6, results[k].Mark.At)
			buf = algorithm.AppendUint(buf, 7, results[k].Mark.Fraction)
		}
		results = results[len(c.Policy.Limits):]
	}
	if isLone(charges) {
		buf = appendBounds(buf, &charges[0].Policy.Limits[0], s.Now, 0)
	}
	j.pack(buf, shape)
	return j
}

func (b *Backend) appendHead(buf []byte, now int64, p *handoff.Placement) []byte {
	buf = append(buf, 1) // it is made once; see batch.argsOf
	buf = algorithm.AppendUint(buf, 6, now)
	buf = algorithm.AppendUint(buf, 4, b.margin)
	if p != nil {
		return append(buf, 1)
	}
	return append(buf, 0)
}

func appendLimit(buf, shape []byte, l *quota.Limit) (_, _ []byte) {
	n := len(buf)
	buf = algorithm.AppendLimit(buf, l)
	return buf, append(shape, buf[n])
}

// pack makes what was appended to j.buf j's argument, and finds the script of its shape.
func (j *job) pack(buf, shape []byte) {
	j.packed, j.buf = buf[len(j.buf):], buf
	j.script = shapes.script(shape)
}

// isLone reports whether charges are one, under one fixed window: a count and a reset
// time.
func isLone(charges []quota.Charge) bool {
	return len(charges) == 1 && len(charges[0].Policy.Limits) == 1 && charges[0].Policy.Limits[0].Algorithm.ResetsAtOnce()
}

// appendBounds appends what lone.lua compares with what is stored of a fixed window, l,
// by a decision at now. All of it is digits, in the order of numbers:
//
//	19  the window is open if the state is above this
//	4   and below this
//	4   one unit fits if the last 4 of the state, what is used, are at most this
//
// The last 4 are blank unless a take is of one unit. If the window is never stored as
// digits, none are above the first.
func appendBounds(b []byte, l *quota.Limit, now, cost int64) []byte {
	const mostUsed = 9999
	w := algorithm.Window{Length: l.Window.Milliseconds(), Aligned: l.Aligned, ResetAt: now, Used: mostUsed}
	b = slices.Grow(b, 64) // as long as what follows is at any time: j keeps it
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
