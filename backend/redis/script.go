package redisbackend

import (
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

// packTake returns the packed form of a take.
func packTake(r throttler.Request, margin int64) []byte {
	b := packHead(r.Now, margin, opTake, len(r.Charges))
	for i := range r.Charges {
		c := &r.Charges[i]
		b = algorithm.AppendUint(b, 7, c.Cost)
		b = append(b, byte(len(c.Policy.Limits)))
		for j := range c.Policy.Limits {
			b = algorithm.AppendLimit(b, &c.Policy.Limits[j])
		}
	}
	return b
}

// packSettle returns the packed form of a settlement.
func packSettle(s throttler.Settlement, margin int64) []byte {
	b := packHead(s.Now, margin, opSettle, len(s.Charged.Charges))
	for i := range s.Charged.Charges {
		c := &s.Charged.Charges[i]
		b = algorithm.AppendUint(b, 7, c.Cost)
		b = algorithm.AppendUint(b, 7, s.Costs[i])
		b = algorithm.AppendUint(b, 6, s.Charged.At.UnixMilli())
		b = append(b, byte(len(c.Policy.Limits)))
		charged := algorithm.StatusesOf(&s.Charged, i)
		for j := range c.Policy.Limits {
			b = algorithm.AppendLimit(b, &c.Policy.Limits[j])
			b = algorithm.AppendUint(b, 6, charged[j].Mark.At)
			b = algorithm.AppendUint(b, 7, charged[j].Mark.Fraction)
		}
	}
	return b
}

func packHead(now time.Time, margin int64, op byte, charges int) []byte {
	b := make([]byte, 0, 64)
	b = algorithm.AppendUint(b, 6, now.UnixMilli())
	b = algorithm.AppendUint(b, 4, margin)
	return append(b, op, byte(charges))
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
