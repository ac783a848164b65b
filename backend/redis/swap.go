package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// This file makes decisions that no script of lua/decide.lua makes: resets and pauses, and
// decisions about states that another policy has charged, counts that arrive from other
// backends, a queue's gaps, or more limits than a Lua function has locals. An exchange reads
// the states, and stores the new ones if the old ones are unchanged; otherwise it begins
// again. Waiting decisions about the same counts are made together, so that a process competes
// with others, and not with itself.

// change is one such decision.
type change struct {
	ctx      context.Context
	deadline time.Time // the earlier end of ctx and of the server's time; zero if there is none

	// apply returns the changes of the stored counts; clock is the server's, in ms. It may be
	// called again: its last call counts.
	apply func(stored []*handoff.Stored, clock int64) ([]handoff.Change, error)

	err  error
	done chan struct{}
}

// takeHere makes the take r. Its copy of r is on the heap, unlike the copy in TakeAt.
func (s *shard) takeHere(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	return s.decideHere(ctx, r.ServerTime, r.Charges(), handoff.Take(r, p))
}

// settleHere makes the settlement st, as takeHere makes a take.
func (s *shard) settleHere(ctx context.Context, st driver.Settlement, p *handoff.Placement) (driver.Decision, error) {
	return s.decideHere(ctx, st.ServerTime, st.Charged.Charges(), handoff.Settle(st, p))
}

// decideHere makes a decision about charges.
func (s *shard) decideHere(ctx context.Context, serverTime time.Duration, charges []quota.Charge, decide handoff.Decide) (driver.Decision, error) {
	var d driver.Decision
	if err := s.swap(ctx, serverTime, charges, func(stored []*handoff.Stored, clock int64) (changes []handoff.Change, err error) {
		d, changes, err = decide(stored, clock)
		return changes, err
	}); err != nil {
		return driver.Decision{}, err // d may still be written: see swap
	}
	return d, nil
}

// swap makes the changes to the counts of charges that apply returns. If the caller leaves,
// apply may be called after swap has returned.
func (s *shard) swap(ctx context.Context, serverTime time.Duration, charges []quota.Charge, apply func([]*handoff.Stored, int64) ([]handoff.Change, error)) error {
	if err := busy.HasTime(ctx); err != nil {
		return s.errorOf(&unsentError{err})
	}
	c := &change{ctx: ctx, apply: apply, done: make(chan struct{})}
	keys, began := s.backend.keysOf(charges), time.Now()
	c.deadline, _ = ctx.Deadline()
	if end := began.Add(serverTime); serverTime > 0 && (c.deadline.IsZero() || end.Before(c.deadline)) {
		c.deadline = end // for the exchange to notice
	}
	key := strings.Join(keys, "")
	if s.changes.Add(key, c) {
		go s.serve(key, charges)
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	switch err := ctx.Err(); {
	case !s.changes.Remove(key, c):
		select {
		case <-c.done: // both at once: the outcome counts
			return c.err
		default:
			return s.errorOf(err)
		}
	case errors.Is(err, context.DeadlineExceeded) && !s.batcherOf([]byte(keys[0])).server.Answers.AnsweredSince(began):
		return s.errorOf(errWaited)
	default:
		return s.errorOf(&unsentError{err})
	}
}

// serve makes the changes that wait for key, which is the key of charges.
func (s *shard) serve(key string, charges []quota.Charge) {
	for group := s.changes.Next(key); len(group) > 0; group = s.changes.Next(key) {
		s.exchange(key, charges, group)
	}
}

// exchange makes the changes of group whose callers still wait when the states are read. Changes
// that join the queue meanwhile are left to the next exchange: older states must not refuse them.
func (s *shard) exchange(key string, charges []quota.Charge, group []*change) {
	began, ctx := time.Now(), context.WithoutCancel(group[0].ctx)
	end := s.endOf(group, began)
	states, err := s.callSwap(ctx, charges, end, nil)
	group = slices.DeleteFunc(group, func(c *change) bool { return !s.changes.Remove(key, c) })
	if err != nil {
		s.finish(group, errNotRead(err))
		return
	}
	for conflicts := 0; states != nil && err == nil; conflicts++ {
		if conflicts > 0 { // each is another process' success: random waits let processes take turns
			time.Sleep(rand.N(min(time.Duration(conflicts)*100*time.Microsecond, 2*time.Millisecond)))
		}
		args := states.apply(group, s.backend.margin)
		switch {
		case args == nil:
			states = nil
		case conflicts > 0 && time.Now().After(end):
			err = fmt.Errorf("%w in time: others changed the counts %d times: %w", driver.ErrNotSent, conflicts, context.DeadlineExceeded)
		default:
			states, err = s.callSwap(ctx, charges, end, args)
		}
	}
	s.finish(group, err)
}

func errNotRead(err error) error {
	return fmt.Errorf("the counts were not read, and %w to change them: %w", driver.ErrNotSent, err)
}

// endOf returns the latest deadline of group, but at most the timeout after began, when the
// exchange began: so a server that hangs is detected as soon as by other decisions.
func (s *shard) endOf(group []*change, began time.Time) time.Time {
	end, latest := began, began.Add(s.backend.timeout)
	for _, c := range group {
		if c.deadline.IsZero() || c.deadline.After(latest) {
			return latest
		}
		if c.deadline.After(end) {
			end = c.deadline
		}
	}
	return end
}

// finish ends changes with the error of their exchange, or with their own.
func (s *shard) finish(group []*change, err error) {
	for _, c := range group {
		elsewhere := (*handoff.ElsewhereError)(nil)
		if err != nil {
			c.err = err
		}
		if c.err != nil && !errors.As(c.err, &elsewhere) {
			c.err = s.errorOf(c.err)
		}
		close(c.done)
	}
}

// swapStates is the reply of swap.lua: the server's clock, and the values of the keys, "" for
// a missing key.
type swapStates struct {
	clock  int64 // Unix ms
	stored []string
}

// apply makes the changes of the states, and returns swap.lua's arguments, or nil if nothing
// changes. A decision about an unreadable value fails, unless it is a reset.
func (s *swapStates) apply(group []*change, margin int64) (args []arg) {
	counts := parseStored(s.stored)
	changed, lives := make([]bool, len(counts)), make([]int64, len(counts))
	for _, c := range group {
		changes, err := c.apply(counts, s.clock)
		if c.err = err; err != nil {
			continue
		}
		for i := range changes {
			if changes[i].Changed {
				counts[i], changed[i] = changes[i].Stored, true
				lives[i] = max(lives[i], changes[i].Life)
			}
		}
	}
	if !slices.Contains(changed, true) {
		return nil
	}
	for i := range counts {
		args = append(args, arg(s.stored[i]), nil, arg("0"))
		if changed[i] {
			args[len(args)-2] = counts[i].Append(nil)
		}
		if lives[i] > 0 {
			args[len(args)-1] = strconv.AppendInt(nil, lives[i]+margin, 10)
		}
	}
	return args
}

// callSwap calls swap.lua about charges. Without args it only reads. The states are nil if new
// ones were stored.
func (s *shard) callSwap(ctx context.Context, charges []quota.Charge, end time.Time, args []arg) (*swapStates, error) {
	call := s.backend.newJob(ctx, charges)
	defer call.free()
	call.script, call.args, call.timeout = swapScript, args, max(time.Until(end), inlineTime)
	if err := s.batcherOf(call.keys[0]).do(call); err != nil {
		return nil, err
	}
	if len(call.values) == 0 {
		if args == nil {
			return nil, errReply
		}
		return nil, nil
	}
	clock, err := strconv.ParseInt(call.values[0], 10, 64)
	if err != nil || len(call.values) != 1+len(call.keys) {
		return nil, errReply
	}
	return &swapStates{clock, call.values[1:]}, nil
}
