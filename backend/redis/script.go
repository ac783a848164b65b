package redisbackend

import (
	"errors"
	"fmt"

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

// notACount is the reply to a decision about a key that holds something else.
const notACount = 3

// errForeign says that a key holds what no weir wrote, or a newer one.
var errForeign = errors.New("something else than a count is stored under the key, or one of a newer version")

// unpackDecision reads the reply to a decision about r, a settlement if settles.
// It fails if the reply is not one that the script can give.
func unpackDecision(r throttler.Request, settles bool, reply []int64) (throttler.Decision, error) {
	if len(reply) == 1 && reply[0] == notACount {
		return throttler.Decision{}, errForeign
	}
	if len(reply) == 0 || reply[0] != 0 && reply[0] != 1 {
		return throttler.Decision{}, fmt.Errorf("the script's reply does not begin with a decision: %d", reply)
	}
	d := throttler.NewDecision(r)
	d.Allowed = reply[0] == 1
	charges, results := r.Charges(), d.Results()
	rest, refused := reply[1:], false
	for i := range charges {
		c := &charges[i]
		for j := range c.Policy.Limits {
			var err error
			if results[j], rest, err = algorithm.CutResult(&c.Policy.Limits[j], c.Cost, r.Now, rest); err != nil {
				return throttler.Decision{}, fmt.Errorf("the script's reply about limit %d of charge %d: %w: %d", j, i, err, reply)
			}
			refused = refused || results[j].RetryAt != 0
		}
		results = results[len(c.Policy.Limits):]
	}
	switch {
	case len(rest) > 0:
		return throttler.Decision{}, fmt.Errorf("the script's reply is %d numbers too long: %d", len(rest), reply)
	case d.Allowed == refused || settles && refused:
		return throttler.Decision{}, fmt.Errorf("the script's reply contradicts itself: %d", reply)
	}
	return d, nil
}
