package redisbackend

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// What the scripts reply. lua/plain.lua describes the replies of the script that makes
// decisions about counts that do not move, and lua/decide.lua the replies in numbers.

// How the reply to a decision begins, if it is not digits alone.
const (
	repliesRefused = 0 // then the states that refused
	repliesAllowed = 1 // then the states as they were charged
	repliesNumbers = 2 // then numbers, one of which says what was decided
)

// digits are the bytes of the reply that one charge is allowed, whose state was these
// digits before.
const digits = 19

// isDigits reports whether a reply begins with digits.
func isDigits(reply []byte) bool { return '0' <= reply[0] && reply[0] <= '9' }

// notACount is the first number of a reply about a key that holds something else.
const notACount = 3

// errForeign reports that a key holds what no version of weir wrote, or a newer one.
var errForeign = errors.New("something else than a count is stored under the key, or one of a newer version")

// errReply reports a reply that no script can give.
var errReply = errors.New("the script's reply has an unknown form")

// cutReply returns the reply to the first decision, which is about so many charges,
// and the rest. A call's reply is the concatenation of its decisions' replies.
func cutReply(reply []byte, charges int) (first, rest []byte, err error) {
	if len(reply) == 0 {
		return nil, nil, errReply
	}
	size := 1
	switch {
	case isDigits(reply):
		if charges != 1 {
			return nil, nil, errReply
		}
		size = digits
	case reply[0] == repliesNumbers:
		if len(reply) < 3 {
			return nil, nil, errReply
		}
		size += 2 + 8*int(binary.BigEndian.Uint16(reply[1:]))
	default:
		for range charges {
			if len(reply) < size+2 {
				return nil, nil, errReply
			}
			size += 2 + int(binary.BigEndian.Uint16(reply[size:]))
		}
	}
	if len(reply) < size {
		return nil, nil, errReply
	}
	return reply[:size], reply[size:], nil
}

// readDecision reads the reply to a decision about r, a settlement if settles.
// It fails if the reply is not one that the script can give.
func readDecision(r driver.Request, settles bool, reply []byte) (driver.Decision, error) {
	charges := r.Charges()
	reply, rest, err := cutReply(reply, len(charges))
	switch {
	case err != nil || len(rest) > 0:
		return driver.Decision{}, errReply
	case isDigits(reply) && !settles:
		return readDigits(r, reply)
	case reply[0] > repliesNumbers:
		return driver.Decision{}, errReply
	case reply[0] == repliesNumbers:
		numbers := make([]int64, len(reply)/8)
		for i := range numbers {
			numbers[i] = int64(binary.BigEndian.Uint64(reply[3+8*i:]))
		}
		return readNumbers(r, settles, numbers)
	}
	allowed, fit := reply[0] != repliesRefused, true
	d := driver.NewDecision(r)
	d.Allowed = allowed
	all := d.Results()
	for i, states := 0, reply[1:]; i < len(charges); i++ {
		c := &charges[i]
		size := 2 + int(binary.BigEndian.Uint16(states))
		results := all[:len(c.Policy.Limits)]
		all = all[len(results):]
		cost := c.Cost
		if settles {
			cost = 0 // it looks at what is left, and asks for nothing
		}
		fits, err := algorithm.ReadStored(states[2:size], allowed && cost > 0, c.Policy.Limits, cost, r.Now, results)
		if err != nil {
			return driver.Decision{}, fmt.Errorf("%w: charge %d: %w", errForeign, i, err)
		}
		if settles {
			fits = true
			for j := range results {
				results[j].RetryAt = 0
			}
		}
		fit = fit && fits
		states = states[size:]
	}
	if allowed != fit {
		return driver.Decision{}, contradiction(reply)
	}
	return d, nil
}

// readDigits reads the reply that the one charge of r is allowed.
func readDigits(r driver.Request, reply []byte) (driver.Decision, error) {
	w, err := algorithm.ReadDigits(reply)
	if err != nil {
		return driver.Decision{}, fmt.Errorf("%w: %w", errForeign, err)
	}
	c := &r.Charges()[0]
	l := &c.Policy.Limits[0]
	if len(c.Policy.Limits) > 1 || !w.IsOf(l) || w.ResetAt <= r.Now || w.Take(l.Quota, c.Cost) != 0 {
		return driver.Decision{}, contradiction(reply)
	}
	d := driver.NewDecision(r)
	d.SetWindow(w.Used, w.ResetAt, 0)
	return d, nil
}

func contradiction(reply []byte) error {
	return fmt.Errorf("the script's reply contradicts itself: %x", reply)
}

// readNumbers reads a reply in numbers.
func readNumbers(r driver.Request, settles bool, reply []int64) (driver.Decision, error) {
	if len(reply) == 1 && reply[0] == notACount {
		return driver.Decision{}, errForeign
	}
	if len(reply) == 0 || reply[0] != 0 && reply[0] != 1 {
		return driver.Decision{}, fmt.Errorf("the script's reply does not begin with a decision: %d", reply)
	}
	d := driver.NewDecision(r)
	d.Allowed = reply[0] == 1
	charges, results := r.Charges(), d.Results()
	rest, refused := reply[1:], false
	for i := range charges {
		c := &charges[i]
		for j := range c.Policy.Limits {
			var err error
			if results[j], rest, err = algorithm.CutResult(&c.Policy.Limits[j], c.Cost, r.Now, rest); err != nil {
				return driver.Decision{}, fmt.Errorf("the script's reply about limit %d of charge %d: %w: %d", j, i, err, reply)
			}
			refused = refused || results[j].RetryAt != 0
		}
		results = results[len(c.Policy.Limits):]
	}
	switch {
	case len(rest) > 0:
		return driver.Decision{}, fmt.Errorf("the script's reply is %d numbers too long: %d", len(rest), reply)
	case d.Allowed == refused || settles && refused:
		return driver.Decision{}, fmt.Errorf("the script's reply contradicts itself: %d", reply)
	}
	return d, nil
}
