package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/throttler/driver"
)

// What no script of lua/decide.lua decides is decided here: states that another policy has
// charged, counts that arrive from other backends, a queue's gaps, more limits than a
// function of Lua has locals. The states are read, and what they become is stored if they
// are unchanged; else all begins again with the new ones. Decisions about the same counts that
// wait are made together, so that a process competes with others, and not with itself.

// change is such a decision.
type change struct {
	// apply returns what the decision makes of the counts that are stored; clock is the
	// server's, in ms. It may be called again: its last call counts.
	apply func(stored []*handoff.Stored, clock int64) ([]handoff.Change, error)

	err  error
	done chan struct{}
}

// swapper makes the changes of one list of keys.
type swapper struct {
	users   int // callers and their exchanges; guarded by the table's mutex, as is waiting
	waiting []*change
	turn    chan struct{} // has an element while an exchange runs
}

// swapTable has the swappers in use, by their keys.
type swapTable struct {
	mu    sync.Mutex
	byKey map[string]*swapper
}

// join adds c to the changes that wait for the same keys.
func (t *swapTable) join(key string, c *change) *swapper {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.byKey[key]
	if w == nil {
		w = &swapper{turn: make(chan struct{}, 1)}
		if t.byKey == nil {
			t.byKey = make(map[string]*swapper)
		}
		t.byKey[key] = w
	}
	w.users++
	w.waiting = append(w.waiting, c)
	return w
}

// hold keeps w in the table until another leave.
func (t *swapTable) hold(w *swapper) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.users++
}

// leave ends what join or hold began.
func (t *swapTable) leave(key string, w *swapper) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(t.byKey, key)
	}
}

// withdraw takes c out of the changes that wait, and reports whether it was one.
func (t *swapTable) withdraw(w *swapper, c *change) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(w.waiting, c)
	if i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
	}
	return i >= 0
}

// take takes the changes that wait.
func (t *swapTable) take(w *swapper) []*change {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := w.waiting
	w.waiting = nil
	return all
}

func (s *shard) takeHere(ctx context.Context, j *job, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	var d driver.Decision
	if err := s.swap(ctx, j, func(stored []*handoff.Stored, clock int64) (changes []handoff.Change, err error) {
		d, changes, err = handoff.Take(r, stored, p, clock)
		return changes, err
	}); err != nil {
		return driver.Decision{}, err // d may still be written: see swap
	}
	return d, nil
}

func (s *shard) settleHere(ctx context.Context, j *job, st driver.Settlement, p *handoff.Placement) (driver.Decision, error) {
	var d driver.Decision
	if err := s.swap(ctx, j, func(stored []*handoff.Stored, clock int64) (changes []handoff.Change, err error) {
		d, changes, err = handoff.Settle(st, stored, p, clock)
		return changes, err
	}); err != nil {
		return driver.Decision{}, err
	}
	return d, nil
}

// swap makes the change of the counts of j's keys that apply returns. If the caller leaves,
// apply may be called after swap has returned.
func (s *shard) swap(ctx context.Context, j *job, apply func([]*handoff.Stored, int64) ([]handoff.Change, error)) error {
	if err := driver.HasTime(ctx); err != nil {
		return s.unsent(err)
	}
	c := &change{apply: apply, done: make(chan struct{})}
	key := string(j.buf[:j.keysEnd])
	w := s.swaps.join(key, c)
	defer s.swaps.leave(key, w)
	ended, asked := ctx.Done(), time.Now()
	for {
		select {
		case <-c.done:
			return c.err
		case w.turn <- struct{}{}:
			s.swaps.hold(w)
			go func(j *job) { // which others wait for, when this caller has left
				defer j.free()
				s.exchange(ctx, j, w, c)
				<-w.turn
				s.swaps.leave(key, w)
			}(j.sameKeys())
		case <-ended:
			err := driver.Ended(ctx)
			isPending := err != nil && s.swaps.withdraw(w, c)
			switch {
			case err == nil:
				ended = nil // the server's time is over: the exchange that runs finds out
			case isPending && errors.Is(err, context.DeadlineExceeded) && !s.batcherOf(j).server.answers.AnsweredSince(asked):
				return s.unavailable(errWaited)
			case isPending:
				return s.unsent(err)
			default:
				select {
				case <-c.done: // both at once: the outcome counts
					return c.err
				default:
					return s.unavailable(err)
				}
			}
		}
	}
}

func (s *shard) unsent(err error) error {
	return fmt.Errorf("redisbackend: shard %q: %w", s.name, &unsentError{err})
}

// exchange makes the changes that wait. c is one of them, unless it was made before or its
// caller has left.
func (s *shard) exchange(ctx context.Context, j *job, w *swapper, c *change) {
	select {
	case <-c.done:
		return
	default:
	}
	now := time.Now()
	end := now.Add(s.backend.timeout)
	if given, _, ok := driver.ServerTime(ctx, now); ok && given.Before(end) {
		end = given
	}
	// Nothing is lost if the read ends with this caller: the next one reads again. And a
	// server that hangs is found out as soon as by other decisions.
	readEnd := end
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		readEnd = deadline
	}
	ctx = context.WithoutCancel(ctx)
	states, err := s.callSwap(ctx, j, readEnd, nil)
	if err != nil {
		if s.swaps.withdraw(w, c) {
			c.err = s.unavailable(fmt.Errorf("the counts were not read, and %w to change them: %w", driver.ErrNotSent, err))
			close(c.done)
		}
		return
	}
	var all []*change
	for conflicts := 0; ; conflicts++ {
		all = append(all, s.swaps.take(w)...)
		args, err := states.apply(all, s.backend.margin)
		if err == nil && args != nil {
			if conflicts > 0 && time.Now().After(end) {
				err = fmt.Errorf("%w in time: others changed the counts %d times: %w", driver.ErrNotSent, conflicts, context.DeadlineExceeded)
			} else {
				states, err = s.callSwap(ctx, j, end, args)
			}
		}
		if err == nil && args != nil && states != nil {
			// Each conflict is another process' success. Waits that differ let them take turns.
			time.Sleep(rand.N(min(time.Duration(conflicts+1)*100*time.Microsecond, 2*time.Millisecond)))
			continue
		}
		for _, c := range all {
			elsewhere := (*handoff.ElsewhereError)(nil)
			switch {
			case err != nil:
				c.err = s.unavailable(err)
			case c.err != nil && !errors.As(c.err, &elsewhere):
				c.err = s.unavailable(c.err)
			}
			close(c.done)
		}
		return
	}
}

// swapStates are what swap.lua replies: the server's clock, and what the keys have, each
// "" for none.
type swapStates struct {
	clock  int64 // Unix ms
	stored []string
}

// apply makes the changes of the states, and returns swap.lua's arguments, nil if nothing
// changes.
func (s *swapStates) apply(all []*change, margin int64) (args []arg, err error) {
	counts, err := parseStored(s.stored)
	if err != nil {
		return nil, err
	}
	changed, lives := make([]bool, len(counts)), make([]int64, len(counts))
	for _, c := range all {
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
		return nil, nil
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
	return args, nil
}

// callSwap calls swap.lua about j's keys, which reads if there are no arguments. The states
// are nil if new ones were stored.
func (s *shard) callSwap(ctx context.Context, j *job, end time.Time, args []arg) (*swapStates, error) {
	call := j.sameKeys()
	defer call.free()
	call.ctx, call.script, call.kind = ctx, swapScript, unbatched
	call.limit = max(time.Until(end), inlineTime)
	call.args = args
	if err := s.batcherOf(call).do(call); err != nil {
		var unsent *unsentError
		if errors.As(err, &unsent) {
			err = fmt.Errorf("%w: %w", driver.ErrNotSent, err)
		}
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
