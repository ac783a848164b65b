package redisbackend

import (
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
	charges := r.Charges()
	b := packHead(r.Now, margin, opTake, len(charges))
	for i := range charges {
		c := &charges[i]
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
	charged := s.Charged.Request()
	charges, results := charged.Charges(), s.Charged.Results()
	b := packHead(s.Now, margin, opSettle, len(charges))
	for i := range charges {
		c := &charges[i]
		b = algorithm.AppendUint(b, 7, c.Cost)
		b = algorithm.AppendUint(b, 7, s.Costs[i])
		b = algorithm.AppendUint(b, 6, charged.Now)
		b = append(b, byte(len(c.Policy.Limits)))
		for j := range c.Policy.Limits {
			b = algorithm.AppendLimit(b, &c.Policy.Limits[j])
			b = algorithm.AppendUint(b, 6, results[j].Mark.At)
			b = algorithm.AppendUint(b, 7, results[j].Mark.Fraction)
		}
		results = results[len(c.Policy.Limits):]
	}
	return b
}

func packHead(now, margin int64, op byte, charges int) []byte {
	b := make([]byte, 0, 64)
	b = algorithm.AppendUint(b, 6, now)
	b = algorithm.AppendUint(b, 4, margin)
	return append(b, op, byte(charges))
}
