package redisbackend

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// TakeAt implements handoff.Store: one decision of an EVALSHA on the primary. If that
// leaves it undecided, or counts arrive, it is an exchange: see swap.go.
func (b *Backend) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (d driver.Decision, err error) {
	j := b.newTake(ctx, &r, p)
	defer j.free()
	s, decided, err := b.decide(j, r.Charges(), p)
	if err != nil {
		return d, err
	}
	if !decided {
		return s.takeHere(ctx, j, r, p)
	}
	if d, err = readTake(r, j.reply); err != nil {
		return d, s.unavailable(err)
	}
	return d, nil
}

// SettleAt implements handoff.Store as TakeAt.
func (b *Backend) SettleAt(ctx context.Context, st driver.Settlement, p *handoff.Placement) (d driver.Decision, err error) {
	j := b.newSettlement(ctx, &st, p)
	defer j.free()
	s, decided, err := b.decide(j, st.Charged.Charges(), p)
	if err != nil {
		return d, err
	}
	if !decided {
		return s.settleHere(ctx, j, st, p)
	}
	if d, err = readSettlement(&st, j.reply); err != nil {
		return d, s.unavailable(err)
	}
	return d, nil
}

// decide sends j, about charges, and reports whether a script has decided. It and what it
// calls have small frames until the reply is there: what hundreds of goroutines that wait
// keep in memory is much of what a decision costs.
func (b *Backend) decide(j *job, charges []quota.Charge, p *handoff.Placement) (s *shard, decided bool, err error) {
	b.monitor.run()
	s = b.shardOf(charges)
	if j.script == nil || p != nil && len(p.Arrivals) > 0 {
		return s, false, nil
	}
	if err := s.do(s.batcherOf(j), j); err != nil {
		return s, false, err
	}
	return s, j.reply[0] != repliesUndecided, nil
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

// Down implements handoff.Store: it reports on the breaker of the primary or, in a
// Redis Cluster, of the node that has the partition.
func (b *Backend) Down(partition string) (since time.Time, down bool) {
	charges := []quota.Charge{{Policy: probePolicy, Key: partition, Partition: partition}}
	j := b.newJob(context.Background(), charges)
	defer j.free()
	return b.shardOf(charges).batcherOf(j).server.breaker.Since()
}

// PeekAt implements handoff.Store: one round trip of GETs, as Peek.
func (b *Backend) PeekAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	if err := driver.Ended(ctx); err != nil {
		return driver.Decision{}, err
	}
	b.monitor.run()
	shard := b.shardOf(r.Charges())
	values, err := shard.read(ctx, r.Charges(), b.replicaTimeout)
	if err != nil {
		return driver.Decision{}, err
	}
	stored, err := parseStored(values)
	if err != nil {
		return driver.Decision{}, shard.unavailable(err)
	}
	counts, err := handoff.FindAll(stored, p, r.Now, unknownTime)
	if err != nil {
		return driver.Decision{}, err
	}
	states := make([]*algorithm.State, len(counts))
	for i := range counts {
		states[i] = &counts[i].State
	}
	return algorithm.Evaluate(r, states), nil
}

// Release implements handoff.Store: an exchange with the primary, or, to read only,
// one round trip of GETs there.
func (b *Backend) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	s := b.shardOf(r.Charges)
	if r.ReadOnly {
		return s.wouldRelease(ctx, r)
	}
	j := b.newJob(ctx, r.Charges)
	defer j.free()
	var all []handoff.Released
	if err := s.swap(ctx, j, func(stored []*handoff.Stored, clock int64) (changes []handoff.Change, err error) {
		all, changes = handoff.ReleaseAll(&r, stored, clock)
		return changes, nil
	}); err != nil {
		return nil, err
	}
	return all, nil
}

// wouldRelease reports what r would release.
func (s *shard) wouldRelease(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	values, err := s.readFrom(ctx, nil, r.Charges, 0)
	if err != nil {
		return nil, err
	}
	stored, err := parseStored(values)
	if err != nil {
		return nil, s.unavailable(err)
	}
	all, _ := handoff.ReleaseAll(&r, stored, unknownTime)
	return all, nil
}

// unknownTime is passed where the server's time is unknown. Expired claims then
// still look valid, which costs the caller at most one extra round trip.
const unknownTime = 0

// parseStored parses what GETs returned; nil where there is nothing.
func parseStored(values []string) ([]*handoff.Stored, error) {
	all := make([]*handoff.Stored, len(values))
	for i := range values {
		if values[i] == "" {
			continue
		}
		stored, err := handoff.Parse([]byte(values[i]))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errForeign, err)
		}
		all[i] = &stored
	}
	return all, nil
}
