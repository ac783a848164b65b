package memorybackend

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// Stats says what a Backend keeps and what it has done since New.
type Stats struct {
	// Keys is how many (policy, key) pairs have a count of their own. Counts that
	// have expired are among them until a new key comes by.
	Keys int `json:"keys" metric:"gauge"`

	// SharedCounts is how many counts new keys share; 0 if there was always room.
	SharedCounts int `json:"shared_counts" metric:"gauge"`

	// Bytes is the memory that counts take, in bytes. It is estimated from above
	// for those that are larger than an entry.
	Bytes int64 `json:"bytes" metric:"gauge"`

	// Evicted is how many counts were dropped before they had expired, to make
	// room. None of them had refused a charge.
	Evicted int64 `json:"evicted"`

	// PooledTakes is how many takes were counted together with other new keys,
	// whether allowed or refused.
	PooledTakes int64 `json:"pooled_takes"`
}

// Stats returns numbers about b. It takes each lock in turn, so they need not be
// of one moment.
func (b *Backend) Stats() Stats {
	var all Stats
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		all.Keys += s.entries.n - s.shared
		all.SharedCounts += s.shared
		all.Bytes += s.bytes()
		all.Evicted += s.evicted
		all.PooledTakes += s.pooled
		s.mu.Unlock()
	}
	return all
}

// reporter logs that new keys find no room, and that they do again.
type reporter struct {
	log    *slog.Logger
	active atomic.Bool
	last   atomic.Int64 // when a new key found no room, by the process' clock
	next   atomic.Int64 // the earliest time of the next line
}

const (
	reportEvery = 1000   // ms between two lines, at least
	reportOver  = 10_000 // ms without a pooled take after which it is over
)

// note notes what became of the new keys of a take.
func (r *reporter) note(b *Backend, f found, at *moment) {
	switch f {
	case noNewKeys:
	case newKeysPooled:
		now := at.clock()
		r.last.Store(now)
		if next := r.next.Load(); now >= next && r.next.CompareAndSwap(next, now+reportEvery) {
			r.active.Store(true)
			r.line(b, slog.LevelWarn, "memorybackend: no room for new keys; they share counts")
		}
	case newKeys:
		if r.active.Load() && at.clock()-r.last.Load() >= reportOver && r.active.CompareAndSwap(true, false) {
			r.line(b, slog.LevelInfo, "memorybackend: there is room for new keys again")
		}
	}
}

func (r *reporter) line(b *Backend, level slog.Level, text string) {
	s := b.Stats()
	r.log.LogAttrs(context.Background(), level, text, slog.Int("keys", s.Keys), slog.Int64("bytes", s.Bytes),
		slog.Int64("evicted", s.Evicted), slog.Int64("pooled_takes", s.PooledTakes))
}
