package leased

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

const (
	sweeps       = 4                // in the time for which a silent key keeps its lease
	forgetAfter  = 10 * time.Second // a key that asks for nothing
	giveBackTime = time.Second      // for a settlement
	giveBacks    = 16               // settlements made at once
)

// sweepUntilClosed gives back the leases of silent keys, and forgets keys.
func (b *Backend) sweepUntilClosed() {
	tick := time.NewTicker(max(b.silence()/sweeps, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-b.closed.Done():
			return
		case <-tick.C:
		}
		_ = b.giveBack(b.closed, b.sweep(b.clock.Now().UnixMilli()))
	}
}

// silence is how long a key may ask for nothing and keep its lease.
func (b *Backend) silence() time.Duration { return time.Duration(b.ahead) * time.Millisecond / 4 }

// sweep returns the settlements that give back the leases of keys that have been silent
// for long enough, and removes keys.
func (b *Backend) sweep(now int64) []driver.Settlement {
	var all []driver.Settlement
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		all = s.sweep(all, now, now-b.silence().Milliseconds())
		s.mu.Unlock()
	}
	return all
}

func (s *shard) sweep(all []driver.Settlement, now, silentSince int64) []driver.Settlement {
	for _, l := range s.lost {
		if l.live(now) {
			all = append(all, l.drop(now))
		}
	}
	s.lost = nil
	for l := s.held.last; l != nil && l.lastAsk <= silentSince; l = s.held.last {
		s.held.remove(l)
		all = append(all, l.drop(now))
	}
	for l := s.all.last; l != nil && l.lastAsk <= now-forgetAfter.Milliseconds() && l.renewal == nil; l = s.all.last {
		s.remove(l)
	}
	return all
}

// expire takes from l what it holds: a window has ended, or the limits have changed.
// The windows that have not ended get their units back with the next sweep.
func (b *Backend) expire(s *shard, l *lease) {
	if l.held > 0 {
		s.lost = append(s.lost, &lease{held: l.held, d: l.d})
	}
	l.held, l.until, l.refusedUntil = 0, 0, 0
	s.noteHolding(l)
}

// giveBackAll gives back what all keys hold.
func (b *Backend) giveBackAll(ctx context.Context) error {
	now := b.clock.Now().UnixMilli()
	var all []driver.Settlement
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		all = s.sweep(all, now, now)
		for l := s.held.last; l != nil; l = s.held.last { // of a clock that was ahead
			s.held.remove(l)
			all = append(all, l.drop(now))
		}
		s.mu.Unlock()
	}
	return b.giveBack(ctx, all)
}

// giveBack makes the settlements. One that fails leaves its units used until their
// windows end.
func (b *Backend) giveBack(ctx context.Context, all []driver.Settlement) error {
	errs := make(chan error, len(all))
	slots := make(chan struct{}, giveBacks)
	for _, st := range all {
		slots <- struct{}{}
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
			defer cancel()
			_, err := b.wrapped.Settle(ctx, st)
			if err == nil {
				b.stats.givenBack.Add(1)
			} else {
				b.stats.stranded.Add(1)
			}
			errs <- err
			<-slots
		}()
	}
	var joined error
	for range all {
		if err := <-errs; err != nil && joined == nil {
			joined = errors.Join(joined, err)
		}
	}
	return joined
}

// Stats has counts since New.
type Stats struct {
	Local     int64 `json:"local"`      // decisions made without a call
	Asked     int64 `json:"asked"`      // takes of the other backend
	Leases    int64 `json:"leases"`     // of these, that leased units
	GivenBack int64 `json:"given_back"` // leases of which a part was given back
	Stranded  int64 `json:"stranded"`   // leases that could not be given back
}

type counters struct {
	asked, leases, givenBack, stranded atomic.Int64
}

// Stats returns the counts so far.
func (b *Backend) Stats() Stats {
	local := int64(0)
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		local += s.local
		s.mu.Unlock()
	}
	return Stats{
		Local: local, Asked: b.stats.asked.Load(), Leases: b.stats.leases.Load(),
		GivenBack: b.stats.givenBack.Load(), Stranded: b.stats.stranded.Load(),
	}
}
