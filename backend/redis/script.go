package redisbackend

import (
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
