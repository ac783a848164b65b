package redisbackend

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler"
)

// What goes to the script and comes back; lua/decide.lua describes both.

const (
	opTake   = 0
	opSettle = 1
)

// packTake appends the packed form of a take to b.
func packTake(b []byte, r throttler.Request, margin int64) []byte {
	b = packHead(b, r.Now, margin, opTake, len(r.Charges))
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

// packSettle appends the packed form of a settlement to b.
func packSettle(b []byte, s throttler.Settlement, margin int64) []byte {
	b = packHead(b, s.Now, margin, opSettle, len(s.Charged.Charges))
	charged := s.Charged.Limits
	for i := range s.Charged.Charges {
		c := &s.Charged.Charges[i]
		b = algorithm.AppendUint(b, 7, c.Cost)
		b = algorithm.AppendUint(b, 7, s.Costs[i])
		b = append(b, byte(len(c.Policy.Limits)))
		for j := range c.Policy.Limits {
			b = algorithm.AppendLimit(b, &c.Policy.Limits[j])
			b = algorithm.AppendUint(b, 6, charged[j].Mark.At)
			b = algorithm.AppendUint(b, 7, charged[j].Mark.Fraction)
		}
		charged = charged[len(c.Policy.Limits):]
	}
	return b
}

func packHead(b []byte, now time.Time, margin int64, op byte, charges int) []byte {
	if b == nil {
		b = make([]byte, 0, 64)
	}
	b = algorithm.AppendUint(b, 6, now.UnixMilli())
	b = algorithm.AppendUint(b, 4, margin)
	return append(b, op, byte(charges))
}

// unpackDecision reads the reply to one decision about charges.
func unpackDecision(now time.Time, charges []throttler.Charge, reply []int64) (throttler.Decision, error) {
	limits := 0
	for i := range charges {
		limits += len(charges[i].Policy.Limits)
	}
	if len(reply) == 0 {
		return throttler.Decision{}, fmt.Errorf("the script's reply is empty")
	}
	d := throttler.Decision{Allowed: reply[0] == 1, At: now, Charges: charges, Limits: make([]throttler.Status, 0, limits)}
	reply = reply[1:]
	for i := range charges {
		c := &charges[i]
		var buf [throttler.MaxLimits]algorithm.Result
		results := buf[:len(c.Policy.Limits)]
		for j := range results {
			size := 6
			if c.Policy.Limits[j].Algorithm == throttler.FixedWindow {
				size = 3
			}
			if len(reply) < size {
				return throttler.Decision{}, fmt.Errorf("the script's reply is short of limit %d of charge %d", j, i)
			}
			results[j] = algorithm.Result{Used: reply[0], ResetAt: reply[1], RetryAt: reply[2]}
			if size == 3 {
				results[j].Mark.At = reply[1]
			} else {
				results[j].StartAt = reply[3]
				results[j].Mark = throttler.Mark{At: reply[4], Fraction: reply[5]}
			}
			reply = reply[size:]
		}
		d.Limits = algorithm.Statuses(d.Limits, c, results)
	}
	return d, nil
}
