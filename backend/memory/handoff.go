package memorybackend

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// TakeAt implements handoff.Store.
func (b *Backend) TakeAt(ctx context.Context, r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	return b.take(ctx, r, p)
}

// PeekAt implements handoff.Store.
func (b *Backend) PeekAt(ctx context.Context, r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	return b.peek(ctx, r, p)
}

// SettleAt implements handoff.Store.
func (b *Backend) SettleAt(ctx context.Context, s throttler.Settlement, p *handoff.Placement) (throttler.Decision, error) {
	return b.settle(ctx, s, p)
}

// Release implements handoff.Store.
func (b *Backend) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := b.shardOf(r.Charges[0].Partition)
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]handoff.Released, len(r.Charges))
	for i := range r.Charges {
		all[i] = s.release(&r, i)
	}
	return all, nil
}

// locate finds the charges' entries, including those that arrive. It fails if one
// is in another backend.
func (s *shard) locate(charges []throttler.Charge, p *handoff.Placement, now int64, found *entries) error {
	var stored [throttler.MaxCharges]*handoff.Stored
	moves := p != nil
	for i := range charges {
		if e := s.find(&charges[i], now); e != nil {
			found[i], stored[i] = e, &e.Stored
			moves = moves || e.Claim != nil
		}
	}
	if !moves {
		return nil
	}
	counts, err := handoff.FindAll(stored[:len(charges)], p, now, monotonic())
	if elsewhere := (*handoff.ElsewhereError)(nil); err != nil && !errors.As(err, &elsewhere) {
		err = fmt.Errorf("memorybackend: %w: %w", throttler.ErrUnavailable, err)
	}
	for i, count := range counts {
		switch {
		case count.Arrived:
			found[i] = &entry{Stored: *count.Stored, arrived: true}
		case count.Stored != stored[i]:
			found[i] = nil // its claim has expired: a new count begins
		}
	}
	return err
}

// keepArrivals puts entries that arrived into the map.
func (s *shard) keepArrivals(charges []throttler.Charge, found *entries, now int64) {
	for i := range charges {
		if e := found[i]; e != nil && e.arrived {
			e.arrived = false
			e.lifetime, e.movedAt = e.life(now), monotonic()
			s.keys[string(s.nameOf(&charges[i]))] = e
		}
	}
}

// release carries out r for its charge i.
func (s *shard) release(r *handoff.ReleaseRequest, i int) handoff.Released {
	now := r.Now.UnixMilli()
	e := s.find(&r.Charges[i], now)
	var stored *handoff.Stored
	if e != nil {
		stored = &e.Stored
	}
	released, left := handoff.Release(r, stored, monotonic())
	if left != nil {
		e = &entry{Stored: *left, movedAt: monotonic()}
		e.lifetime = e.life(now)
		s.keys[string(s.nameOf(&r.Charges[i]))] = e
	}
	return released
}
