package rollout

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// probeEvery is the time between two probes of a shard that fails. Probes make the
// time since its first failure a time in which it was asked and did not answer.
const probeEvery = time.Second

// health records which shards of a member fail.
type health struct {
	failing atomic.Int64 // number of shards that fail, nearly always 0

	mu    sync.Mutex
	since map[string]time.Time // by shard name: the first failure since it last answered
}

// fails returns how long a shard has not answered. It returns false if the shard is
// not known to fail.
func (h *health) fails(shard string) (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	since, failing := h.since[shard]
	return time.Since(since), failing
}

// answered records that a shard answers.
func (h *health) answered(shard string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, failing := h.since[shard]; failing {
		delete(h.since, shard)
		h.failing.Add(-1)
	}
}

// failed records that a shard did not answer. It returns the time of the first
// failure, and whether this is the first.
func (h *health) failed(shard string) (since time.Time, begins bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if since, failing := h.since[shard]; failing {
		return since, false
	}
	if h.since == nil {
		h.since = make(map[string]time.Time)
	}
	since = time.Now()
	h.since[shard] = since
	h.failing.Add(1)
	return since, true
}

func (h *health) failsSince(shard string, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	current, failing := h.since[shard]
	return failing && current.Equal(since)
}

// note records the outcome of a call that writes to m's shard of partition. A
// canceled call and a bad argument say nothing about the shard.
func (b *Backend) note(ctx context.Context, m *member, partition string, err error) {
	switch {
	case err == nil && m.health.failing.Load() == 0: // the common case
	case err == nil:
		m.health.answered(m.backend.Shard(partition))
	case errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, throttler.ErrInvalid):
	default:
		shard := m.backend.Shard(partition)
		if since, begins := m.health.failed(shard); begins {
			b.probe(m, shard, partition, since)
		}
	}
}

// probe asks a shard that has failed since then whether it answers, until it does or
// the Backend is closed. A probe is a release, because a shard may answer reads and
// refuse writes. It releases a count that does not exist, in a partition of the
// shard.
func (b *Backend) probe(m *member, shard, partition string, since time.Time) {
	b.probes.Go(func() {
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for {
			select {
			case <-b.closed.Done():
				return
			case <-tick.C:
			}
			if !m.health.failsSince(shard, since) {
				return
			}
			ctx, cancel := context.WithTimeout(b.closed, probeEvery)
			_, err := m.backend.Release(ctx, handoff.ReleaseRequest{
				Now:     time.Now().UnixMilli(),
				Charges: []throttler.Charge{{Policy: probePolicy, Key: partition, Partition: partition}},
				To:      m.id, Version: 1, Keep: probeEvery,
			})
			cancel()
			if err == nil {
				m.health.answered(shard)
			}
		}
	})
}

var probePolicy = &throttler.Policy{Name: "rollout/probe", Limits: []throttler.Limit{{Quota: 1, Window: time.Second}}}

// lost reports whether to give up the counts that m may have in its shard of
// partition: the shard has not answered for Abandon or, if nothing has ever named
// the member, for a second.
func (b *Backend) lost(m *member, partition string) bool {
	if m.health.failing.Load() == 0 {
		return false
	}
	silence, failing := m.health.fails(m.backend.Shard(partition))
	return failing && (silence >= b.abandon || silence >= probeEvery && !m.named.Load())
}
