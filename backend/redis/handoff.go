package redisbackend

import (
	"context"
	"fmt"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler/driver"
)

// PeekAt implements handoff.Store: one round trip of GETs, as Peek.
func (b *Backend) PeekAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	b.monitor.Run()
	stored, err := b.shardOf(r.Charges()).read(ctx, &r)
	if err != nil {
		return driver.Decision{}, err
	}
	d, _, err := handoff.Peek(r, p)(stored, unknownTime)
	return d, err
}

// Release implements handoff.Store: an exchange with the primary or, if r is ReadOnly, one
// round trip of GETs there.
func (b *Backend) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	s := b.shardOf(r.Charges)
	var released []handoff.Released
	if r.ReadOnly {
		stored, err := s.readFrom(ctx, nil, r.Charges, r.ServerTime)
		if err == nil {
			released, _, err = handoff.ReleaseAll(&r, stored, unknownTime)
		}
		return released, err
	}
	if err := s.swap(ctx, r.ServerTime, r.Charges, func(stored []*handoff.Stored, clock int64) (changes []handoff.Change, err error) {
		released, changes, err = handoff.ReleaseAll(&r, stored, clock)
		return changes, err
	}); err != nil {
		return nil, err // released may still be written: see swap
	}
	return released, nil
}

// unknownTime is passed where the server's time is unknown. Expired claims then
// still look valid, which costs the caller at most one extra round trip.
const unknownTime = 0

// parseStored parses the values of GETs. A missing key becomes nil, and an unreadable value a
// Stored with an Err.
func parseStored(values []string) []*handoff.Stored {
	all := make([]*handoff.Stored, len(values))
	for i := range values {
		if values[i] == "" {
			continue
		}
		stored, err := handoff.Parse([]byte(values[i]))
		if err != nil {
			stored = handoff.Stored{Err: fmt.Errorf("%w: %w", errForeign, err)}
		}
		all[i] = &stored
	}
	return all
}
