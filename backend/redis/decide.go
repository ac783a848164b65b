package redisbackend

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// This file makes decisions by scripts. lua/decide.lua describes their arguments and replies.

// Take implements driver.Backend: one decision of an EVALSHA on the primary, or an exchange if
// the script leaves it undecided.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.TakeAt(ctx, r, nil)
}

// TakeAt implements handoff.Store: one decision of an EVALSHA on the primary. If the script
// leaves it undecided, or counts arrive, it is an exchange: see swap.go.
func (b *Backend) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (d driver.Decision, err error) {
	j := b.newDecision(ctx, r.Now, r.Charges(), nil, p)
	defer j.free()
	j.timeout = r.ServerTime
	s, decided, err := b.decide(j, r.Charges(), p)
	if err != nil {
		return d, err
	}
	if !decided {
		return s.takeHere(ctx, r, p)
	}
	if d, err = readTake(r, j.reply); err != nil {
		return d, s.errorOf(err)
	}
	return d, nil
}

// Settle implements driver.Backend as Take.
func (b *Backend) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	return b.SettleAt(ctx, s, nil)
}

// SettleAt implements handoff.Store as TakeAt.
func (b *Backend) SettleAt(ctx context.Context, st driver.Settlement, p *handoff.Placement) (d driver.Decision, err error) {
	if st.Once || st.PauseUntil > 0 || severalGenerations(&st.Charged) {
		b.monitor.Run()
		return b.shardOf(st.Charged.Charges()).settleHere(ctx, st, p)
	}
	j := b.newDecision(ctx, st.Now, st.Charged.Charges(), &st, p)
	defer j.free()
	j.timeout = st.ServerTime
	s, decided, err := b.decide(j, st.Charged.Charges(), p)
	if err != nil {
		return d, err
	}
	if !decided {
		return s.settleHere(ctx, st, p)
	}
	if d, err = readSettlement(&st, j.reply); err != nil {
		return d, s.errorOf(err)
	}
	return d, nil
}

// severalGenerations reports whether the marks of a charge have different generations, because
// units in flight were renewed after a reset. A script compares one generation for each charge.
func severalGenerations(d *driver.Decision) bool {
	results := d.Results()
	for _, c := range d.Charges() {
		for k := range c.Policy.Limits {
			if results[k].Mark.Generation != results[0].Mark.Generation {
				return true
			}
		}
		results = results[len(c.Policy.Limits):]
	}
	return false
}

// Reset implements driver.Backend. It is an exchange: see swap.go.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	return b.ResetAt(ctx, r, nil)
}

// ResetAt implements handoff.Store as Reset.
func (b *Backend) ResetAt(ctx context.Context, r driver.Request, p *handoff.Placement) error {
	b.monitor.Run()
	_, err := b.shardOf(r.Charges()).decideHere(ctx, r.ServerTime, r.Charges(), handoff.Reset(r, p))
	return err
}

// newDecision returns the job of a take at now or, if st is not nil, of that settlement. p is
// nil if counts do not move.
func (b *Backend) newDecision(ctx context.Context, now int64, charges []quota.Charge, st *driver.Settlement, p *handoff.Placement) *job {
	j := b.newJob(ctx, charges)
	buf, shape := append(j.buf, 1), append(j.shape[:0], takes) // it is made once; see batch.argsOf
	var charged []driver.Result
	if st != nil {
		shape[0], charged = settlements, st.Charged.Results()
	}
	buf = algorithm.AppendUint(buf, 6, now)
	buf = algorithm.AppendUint(buf, 4, b.margin)
	if p != nil {
		buf = append(buf, 1)
	} else {
		buf = append(buf, 0)
	}
	for i := range charges {
		c := &charges[i]
		shape = append(shape, nextCharge)
		switch {
		case st == nil:
			buf = algorithm.AppendUint(buf, 7, c.Cost)
		case st.Renews && c.Cost > 0:
			buf = algorithm.AppendUint(algorithm.AppendUint(buf, 7, renews), 7, renews)
		default:
			buf = algorithm.AppendUint(algorithm.AppendUint(buf, 7, c.Cost), 7, st.Costs[i])
		}
		if st == nil && c.Mode != quota.Enforce {
			shape = append(shape, lua.Mode+byte(c.Mode))
			if c.Mode == quota.AtMost {
				j.costs++
			}
		}
		if st != nil {
			buf = algorithm.AppendUint(buf, 4, int64(charged[0].Mark.Generation))
		}
		for k := range c.Policy.Limits {
			kind := len(buf)
			buf = algorithm.AppendLimit(buf, &c.Policy.Limits[k], now)
			shape = append(shape, buf[kind])
			if st != nil {
				mark := &charged[0].Mark
				buf = algorithm.AppendUint(algorithm.AppendUint(buf, 6, mark.At), 7, mark.Fraction)
				charged = charged[1:]
			}
		}
	}
	if isSingleWindow(charges) {
		buf = appendBounds(buf, &charges[0], now, st != nil)
	}
	j.packed, j.buf = buf[len(j.buf):], buf
	j.script = scriptOf(shape)
	return j
}

// renews is both costs of a charge in a renewal. No other cost is as large.
const renews = 1 << 54

// isSingleWindow reports whether charges is one charge under one fixed window that is not a
// calendar's: a count and a reset time.
func isSingleWindow(charges []quota.Charge) bool {
	return len(charges) == 1 && len(charges[0].Policy.Limits) == 1 && charges[0].Policy.Limits[0].Algorithm.ResetsAtOnce() && charges[0].Policy.Limits[0].Calendar.IsZero()
}

// appendBounds appends the bounds that single_window.lua compares with the stored digits of
// c's fixed window, in a take or a settlement at now. They compare as numbers do:
//
//	19  the window is open if the state is above this
//	4   and below this
//	4   one unit fits if the last 4 of the state, the used units, are at most this
//
// The last 4 are blank unless a take is of one unit, in mode Enforce. If the window is never
// stored as digits, the first 19 are above any digits.
func appendBounds(b []byte, c *quota.Charge, now int64, settles bool) []byte {
	const mostUsed = 9999
	l := &c.Policy.Limits[0]
	w := algorithm.Window{Length: l.Window.Milliseconds(), Aligned: l.Aligned, ResetAt: now, Used: mostUsed}
	b = slices.Grow(b, 64) // enough for all bounds: j keeps it
	start := len(b)
	digits, ok := algorithm.AppendDigits(b, w)
	if ok {
		w.ResetAt += w.Length
		_, ok = algorithm.AppendDigits(digits, w)
	}
	if ok {
		code := 100*int64(digits[start]-'0') + 10*int64(digits[start+1]-'0') + int64(digits[start+2]-'0')
		b = strconv.AppendInt(digits, 10*(code+1), 10)
	} else {
		b = append(b, "99999999999999999990000"...)
	}
	if settles || c.Cost != 1 || c.Mode != quota.Enforce {
		return append(b, "    "...)
	}
	room := strconv.AppendInt(b, 10_000+min(l.Quota, mostUsed)-1, 10) // with a leading 1
	return append(b, room[len(b)+1:]...)
}

// decide sends j, about charges, and reports whether a script has decided. It and its callees
// have small frames until the reply comes: the memory of hundreds of goroutines that wait is
// much of a decision's cost.
func (b *Backend) decide(j *job, charges []quota.Charge, p *handoff.Placement) (s *shard, decided bool, err error) {
	b.monitor.Run()
	s = b.shardOf(charges)
	if j.script == nil || p != nil && len(p.Arrivals) > 0 {
		return s, false, nil
	}
	if err := s.batcherOf(j.keys[0]).do(j); err != nil {
		return s, false, s.errorOf(err)
	}
	return s, j.reply[0] != repliesUndecided, nil
}

// The first byte of the reply to a decision, unless it is digits alone.
const (
	repliesRefused   = 0 // then the states, not charged
	repliesAllowed   = 1 // then the charged states
	repliesUndecided = 2
)

// digits is the length of a reply that is digits alone: one charge is allowed, and these were
// the digits of its state before.
const digits = 19

// isDigits reports whether a reply begins with digits.
func isDigits(reply []byte) bool { return '0' <= reply[0] && reply[0] <= '9' }

// errForeign reports that neither this nor an earlier version of weir wrote a key's value.
var errForeign = errors.New("the key holds something other than a count, or a count of a newer version")

// errReply reports a reply that no script gives.
var errReply = errors.New("the script's reply has an unknown form")

// splitReply splits the reply to a call, a concatenation of the replies to its decisions, into
// the first reply, which has so many parts, and the rest.
func splitReply(reply []byte, parts int) (first, tail []byte, err error) {
	if len(reply) == 0 {
		return nil, nil, errReply
	}
	size := 1
	switch {
	case isDigits(reply):
		if parts != 1 {
			return nil, nil, errReply
		}
		size = digits
	case reply[0] == repliesUndecided:
	case reply[0] > repliesUndecided:
		return nil, nil, errReply
	default:
		for range parts {
			_, state := handoff.CutFront(reply[min(size, len(reply)):])
			if size = len(reply) - len(state) + 2; len(state) < 2 {
				return nil, nil, errReply
			}
			size += int(binary.BigEndian.Uint16(state))
		}
	}
	if len(reply) < size {
		return nil, nil, errReply
	}
	return reply[:size], reply[size:], nil
}

// readTake reads the reply to a take, r. It fails if the script can't have given that reply.
func readTake(r driver.Request, reply []byte) (driver.Decision, error) {
	charges := r.Charges()
	if !isDigits(reply) {
		return readTakes(r, reply)
	}
	w, err := algorithm.ReadDigits(reply)
	if err != nil {
		return driver.Decision{}, fmt.Errorf("%w: %w", errForeign, err)
	}
	limits := charges[0].Policy.Limits
	if len(limits) > 1 || !w.IsOf(&limits[0]) || w.ResetAt <= r.Now || w.Take(limits[0].Quota, charges[0].Cost) != 0 {
		return driver.Decision{}, contradiction(reply)
	}
	d := driver.NewDecision(r)
	d.SetWindow(w.Used, w.ResetAt, 0)
	return d, nil
}

// readTakes reads a reply with states to a take, r.
func readTakes(r driver.Request, reply []byte) (d driver.Decision, err error) {
	if reply[0] == repliesUndecided {
		return d, errReply
	}
	granted, states, err := readCosts(r.Charges(), reply[1:])
	if err != nil {
		return d, err
	}
	charges, allowed := r.Charges(), reply[0] == repliesAllowed
	d, fit, err := readStates(r, reply[0], states, func(i int) (cost int64, charged bool) {
		switch c := &charges[i]; {
		case !allowed:
			return c.Mode.Asks(c.Cost), false
		case c.Mode == quota.Check:
			return c.Cost, false
		default:
			return granted[i], granted[i] > 0
		}
	})
	if err != nil || d.Allowed != fit {
		return d, cmp.Or(err, contradiction(reply))
	}
	for i := range charges {
		switch c := &charges[i]; {
		case c.Mode == quota.Record:
			results := d.ResultsOf(i)
			for k := range results {
				results[k].RetryAt, results[k].StartAt = 0, 0
			}
		case allowed && c.Mode == quota.Check:
			d.SetCost(i, 0)
		case allowed:
			d.SetCost(i, granted[i])
		}
	}
	return d, nil
}

// readCosts returns the costs that charges have if they fit, and the states. In parts, the
// costs of charges in mode AtMost precede the states.
func readCosts(charges []quota.Charge, parts []byte) (costs [quota.MaxCharges]int64, states []byte, err error) {
	for i := range charges {
		costs[i] = charges[i].Cost
		if charges[i].Mode != quota.AtMost {
			continue
		}
		if binary.BigEndian.Uint16(parts) != costBytes {
			return costs, nil, errReply
		}
		cost := int64(binary.BigEndian.Uint64(parts[1:]) & (1<<(8*costBytes) - 1))
		if cost < min(costs[i], 1) || cost > costs[i] {
			return costs, nil, errReply
		}
		costs[i], parts = cost, parts[2+costBytes:]
	}
	return costs, parts, nil
}

// costBytes is the number of bytes of a cost in a reply.
const costBytes = 7

// readSettlement reads the reply to a settlement, s.
func readSettlement(s *driver.Settlement, reply []byte) (driver.Decision, error) {
	r := s.Charged.Request
	r.Now = s.Now
	if reply[0] != repliesAllowed && (!s.Renews || reply[0] != repliesRefused) {
		return driver.Decision{}, errReply
	}
	d, _, err := readStates(r, reply[0], reply[1:], func(i int) (cost int64, charged bool) {
		c := &r.Charges()[i]
		if s.Renews {
			return min(c.Cost, 1), false // a charge of cost 0 has no unit to renew
		}
		added := s.Costs[i] - c.Cost
		if c.Policy.HoldsOnly() {
			added = 0
		}
		return max(added, 0), added > 0 // otherwise it charges nothing, and only looks
	})
	for i, c := range d.Charges() {
		results := d.ResultsOf(i)
		for k := range results {
			held := c.Policy.Limits[k].Algorithm.Holds()
			if d.Allowed || !held || c.Cost == 0 {
				results[k].RetryAt = 0 // even if a debt is left
			}
			switch {
			case !held:
			case s.Renews && d.Allowed && c.Cost > 0: // the unit is the newest
				results[k].Mark.At = results[k].ResetAt - c.Policy.Limits[k].Window.Milliseconds()
			default:
				results[k].Mark.At = 0
			}
		}
	}
	return d, err
}

// readStates reads the states of the charges of r, and reports whether all costs fit. cost
// returns the cost of a charge, and whether it was charged.
func readStates(r driver.Request, answer byte, states []byte, cost func(i int) (int64, bool)) (d driver.Decision, fit bool, err error) {
	d, fit = driver.NewDecision(r), true
	d.Allowed = answer == repliesAllowed
	charges := r.Charges()
	for i := range charges {
		generation, state := handoff.CutFront(states)
		size := 2 + int(binary.BigEndian.Uint16(state))
		cost, charged := cost(i)
		results := d.ResultsOf(i)
		fits, err := algorithm.ReadReply(state[2:size], charged, charges[i].Policy.Limits, cost, r.Now, results)
		if err != nil {
			return driver.Decision{}, false, fmt.Errorf("%w: charge %d: %w", errForeign, i, err)
		}
		for k := range results {
			results[k].Mark.Generation = generation
		}
		fit = fit && (fits || charges[i].Mode == quota.Record)
		states = state[size:]
	}
	return d, fit, nil
}

func contradiction(reply []byte) error {
	return fmt.Errorf("the script's reply contradicts itself: %x", reply)
}
