package redisbackend

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler"
)

// What goes to the script and comes back; lua/decide.lua describes both.

// Operations, added up.
const (
	opTake     = 0
	opSettle   = 1
	opMoves    = 2
	opRequired = 4
	opArrives  = 8
	opLive     = 16
)

// packTake appends the packed form of a take to b.
func packTake(b []byte, r throttler.Request, margin int64) []byte {
	b = packHead(b, r.Now, margin, opTake, r.Home, len(r.Charges))
	for i := range r.Charges {
		c := &r.Charges[i]
		b = algorithm.AppendUint(b, 7, c.Cost)
		b = append(b, byte(len(c.Policy.Limits)))
		for j := range c.Policy.Limits {
			b = algorithm.AppendLimit(b, &c.Policy.Limits[j])
		}
		b = packArrival(b, r.Home, i)
	}
	return b
}

// packSettle appends the packed form of a settlement to b.
func packSettle(b []byte, s throttler.Settlement, margin int64) []byte {
	b = packHead(b, s.Now, margin, opSettle, s.Home, len(s.Charged.Charges))
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
		b = packArrival(b, s.Home, i)
	}
	return b
}

func packHead(b []byte, now time.Time, margin int64, op byte, home *throttler.Home, charges int) []byte {
	if b == nil {
		b = make([]byte, 0, 64)
	}
	b = algorithm.AppendUint(b, 6, now.UnixMilli())
	b = algorithm.AppendUint(b, 4, margin)
	op |= opsOf(home)
	b = append(b, op, byte(charges))
	if op&opArrives == 0 {
		return b
	}
	b = algorithm.AppendUint(b, 6, home.Version)
	b = algorithm.AppendUint(b, 6, int64(home.Place))
	return algorithm.AppendUint(b, 4, home.Keep.Milliseconds())
}

// opsOf returns what home adds to the operation.
func opsOf(home *throttler.Home) byte {
	if home == nil {
		return 0
	}
	op := byte(opMoves)
	if home.Required {
		op |= opRequired
	}
	if home.Live {
		op |= opLive
	}
	if home.Arrivals != nil {
		op |= opArrives
	}
	return op
}

// packArrival appends what is said of the count of charge i, if counts arrive.
func packArrival(b []byte, home *throttler.Home, i int) []byte {
	switch {
	case home == nil || home.Arrivals == nil:
		return b
	case !home.Arrivals[i].Due:
		return append(b, 0)
	}
	b = append(b, 1)
	b = algorithm.AppendUint(b, 6, home.Arrivals[i].Parted)
	b = algorithm.AppendUint(b, 4, int64(len(home.Arrivals[i].State)))
	return append(b, home.Arrivals[i].State...)
}

func packRelease(r throttler.Release, margin int64) []byte {
	b := algorithm.AppendUint(make([]byte, 0, 20), 4, margin)
	b = algorithm.AppendUint(b, 4, r.Keep.Milliseconds())
	b = algorithm.AppendUint(b, 6, r.Version)
	return algorithm.AppendUint(b, 6, int64(r.To))
}

// unpackReleased reads the reply to a release of so many counts.
func unpackReleased(counts int, reply []any) ([]throttler.Released, error) {
	if len(reply) != 4*counts {
		return nil, fmt.Errorf("the script's reply to a release of %d counts has %d parts", counts, len(reply))
	}
	all := make([]throttler.Released, counts)
	for i := range all {
		code, ok1 := reply[4*i].(int64)
		version, ok2 := reply[4*i+1].(int64)
		place, ok3 := reply[4*i+2].(int64)
		state, ok4 := reply[4*i+3].(string)
		if !ok1 || !ok2 || !ok3 || !ok4 {
			return nil, fmt.Errorf("the script's reply to a release has an unknown form: %v", reply[4*i:4*i+4])
		}
		switch code {
		case 1, 2:
			all[i] = throttler.Released{Left: code == 2, Parted: version, State: []byte(state)}
		case 3:
			all[i] = throttler.Released{Stays: true, Version: version, Place: throttler.Place(place)}
		}
	}
	return all, nil
}

// unpackElsewhere reads the reply to a decision whose counts are not all here.
func unpackElsewhere(charges int, reply []int64) error {
	e := &throttler.ElsewhereError{Counts: make([]throttler.Whereabouts, charges)}
	for i := range e.Counts {
		switch {
		case len(reply) >= 1 && reply[0] < 2:
			e.Counts[i].Missing = reply[0] == 1
			reply = reply[1:]
		case len(reply) >= 3:
			e.Counts[i] = throttler.Whereabouts{Version: reply[1], Place: throttler.Place(reply[2])}
			reply = reply[3:]
		default:
			return fmt.Errorf("the script's reply is short of charge %d", i)
		}
	}
	return e
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
	if reply[0] == 2 {
		return throttler.Decision{}, unpackElsewhere(len(charges), reply[1:])
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
