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
