package redisbackend

import (
	"context"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler/driver"
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
	b.monitor.Run()
	s := b.shardOf(r.Charges())
	if j.script != nil {
		if err := s.batcherOf(j.keys[0]).do(j); err != nil {
			return d, s.errorOf(err)
		}
	}
	if j.script == nil || j.reply[0] == repliesUndecided {
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
	b.monitor.Run()
	s := b.shardOf(st.Charged.Charges())
	if st.Once || st.PauseUntil > 0 || severalGenerations(&st.Charged) {
		return s.settleHere(ctx, st, p)
	}
	j := b.newDecision(ctx, st.Now, st.Charged.Charges(), &st, p)
	defer j.free()
	j.timeout = st.ServerTime
	if j.script != nil {
		if err := s.batcherOf(j.keys[0]).do(j); err != nil {
			return d, s.errorOf(err)
		}
	}
	if j.script == nil || j.reply[0] == repliesUndecided {
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
