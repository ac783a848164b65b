package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler"
)

// What goes to the scripts that decide and comes back; lua/decide.lua describes
// both.

// Operations.
const (
	opTake   = 0
	opSettle = 1
)

// newTake returns the job of a take.
func (b *Backend) newTake(ctx context.Context, r throttler.Request) *job {
	j := b.newJob(ctx, r.Charges)
	buf := b.appendHead(j.buf, r.Now, opTake, len(r.Charges))
	for i := range r.Charges {
		c := &r.Charges[i]
		buf = algorithm.AppendUint(buf, 7, c.Cost)
		buf = append(buf, byte(len(c.Policy.Limits)))
		for k := range c.Policy.Limits {
			buf = algorithm.AppendLimit(buf, &c.Policy.Limits[k])
		}
	}
	if isSimple(r.Charges) {
		j.kind = simple
	}
	j.packed, j.buf = buf[len(j.buf):], buf
	return j
}

// newSettlement returns the job of a settlement.
func (b *Backend) newSettlement(ctx context.Context, s throttler.Settlement) *job {
	charges := s.Charged.Charges
	j := b.newJob(ctx, charges)
	buf := b.appendHead(j.buf, s.Now, opSettle, len(charges))
	for i := range charges {
		c := &charges[i]
		buf = algorithm.AppendUint(buf, 7, c.Cost)
		buf = algorithm.AppendUint(buf, 7, s.Costs[i])
		buf = algorithm.AppendUint(buf, 6, s.Charged.At.UnixMilli())
		buf = append(buf, byte(len(c.Policy.Limits)))
		charged := algorithm.StatusesOf(&s.Charged, i)
		for k := range c.Policy.Limits {
			buf = algorithm.AppendLimit(buf, &c.Policy.Limits[k])
			buf = algorithm.AppendUint(buf, 6, charged[k].Mark.At)
			buf = algorithm.AppendUint(buf, 7, charged[k].Mark.Fraction)
		}
	}
	j.packed, j.buf = buf[len(j.buf):], buf
	return j
}

func (b *Backend) appendHead(buf []byte, now time.Time, op byte, charges int) []byte {
	buf = algorithm.AppendUint(buf, 6, now.UnixMilli())
	buf = algorithm.AppendUint(buf, 4, b.margin)
	return append(buf, op, byte(charges))
}

// isSimple reports whether fast.lua decides a take of charges, in most cases.
func isSimple(charges []throttler.Charge) bool {
	if len(charges) != 1 || len(charges[0].Policy.Limits) != 1 {
		return false
	}
	l := &charges[0].Policy.Limits[0]
	return l.Algorithm == throttler.FixedWindow && !l.Aligned
}

// notACount is the reply to a decision about a key that holds something else.
const notACount = 3

// errForeign says that a key holds what no weir wrote, or a newer one.
var errForeign = errors.New("something else than a count is stored under the key, or one of a newer version")

// unpackDecision reads the reply to a decision about charges, a settlement if
// settles. It fails if the reply is not one that the script can give.
func unpackDecision(now time.Time, charges []throttler.Charge, settles bool, reply []int64) (throttler.Decision, error) {
	if len(reply) == 1 && reply[0] == notACount {
		return throttler.Decision{}, errForeign
	}
	if len(reply) == 0 || reply[0] != 0 && reply[0] != 1 {
		return throttler.Decision{}, fmt.Errorf("the script's reply does not begin with a decision: %d", reply)
	}
	limits := 0
	for i := range charges {
		limits += len(charges[i].Policy.Limits)
	}
	d := throttler.Decision{Allowed: reply[0] == 1, At: now, Charges: charges, Limits: make([]throttler.Status, 0, limits)}
	rest, refused := reply[1:], false
	for i := range charges {
		c := &charges[i]
		var buf [throttler.MaxLimits]algorithm.Result
		results := buf[:len(c.Policy.Limits)]
		for j := range results {
			var err error
			if results[j], rest, err = algorithm.CutResult(&c.Policy.Limits[j], c.Cost, now.UnixMilli(), rest); err != nil {
				return throttler.Decision{}, fmt.Errorf("the script's reply about limit %d of charge %d: %w: %d", j, i, err, reply)
			}
			refused = refused || results[j].RetryAt != 0
		}
		d.Limits = algorithm.Statuses(d.Limits, c, results)
	}
	switch {
	case len(rest) > 0:
		return throttler.Decision{}, fmt.Errorf("the script's reply is %d numbers too long: %d", len(rest), reply)
	case d.Allowed == refused || settles && refused:
		return throttler.Decision{}, fmt.Errorf("the script's reply contradicts itself: %d", reply)
	}
	return d, nil
}
