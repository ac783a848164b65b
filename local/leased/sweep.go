package leased

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

const (
	sweeps       = 4                // in the time that a silent key keeps its lease
	forgetAfter  = 10 * time.Second // a key that asks for nothing
	giveBackTime = time.Second      // for a settlement
	giveBacks    = 16               // settlements made at once
)

// silence is how long a key may ask for nothing and keep its lease.
func (b *Backend) silence() time.Duration { return time.Duration(b.ahead) * time.Millisecond / 4 }

// sweep gives back the leases of keys that have been silent for long enough, and removes idle
// keys. If stop is closed, it completes the settlements begun, and leaves others to Close.
func (b *Backend) sweep(stop <-chan struct{}) {
	b.sweeps.Lock()
	defer b.sweeps.Unlock()
	_ = b.giveBack(context.Background(), stop, b.collect(b.clock.Now().UnixMilli()))
}

// collect returns the settlements of a sweep.
func (b *Backend) collect(now int64) []driver.Settlement {
	var settlements []driver.Settlement
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		settlements = s.reclaim(settlements, now, now-b.silence().Milliseconds())
		if s.swept == 0 {
			s.swept = math.MaxInt
		}
		s.swept = s.Sweep(s.swept, func(l *lease) bool {
			return l.lastAsk <= now-forgetAfter.Milliseconds() && l.held == 0 && l.renewal == nil
		})
		s.mu.Unlock()
	}
	return settlements
}

// reclaim appends the refunds that wait, and refunds of the units held by keys that have asked for
// nothing since silentSince.
func (s *stripe) reclaim(settlements []driver.Settlement, now, silentSince int64) []driver.Settlement {
	for l := range s.holding {
		if l.lastAsk <= silentSince {
			s.refund(l)
		}
		if l.held == 0 {
			delete(s.holding, l)
		}
	}
	for _, st := range s.refunds {
		if st.Now = now; slices.ContainsFunc(st.Charged.Results(), func(r driver.Result) bool { return r.ResetAt > now }) {
			settlements = append(settlements, st)
		}
	}
	s.refunds = nil
	return settlements
}

// giveBackAll gives back the leases of all keys.
func (b *Backend) giveBackAll(ctx context.Context) error {
	now := b.clock.Now().UnixMilli()
	var settlements []driver.Settlement
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		settlements = s.reclaim(settlements, now, math.MaxInt64) // even if the clock was ahead
		s.mu.Unlock()
	}
	return b.giveBack(ctx, ctx.Done(), settlements)
}

// giveBack makes the settlements, and begins none after stop is closed. Settlements that
// were not sent are left to the next sweep. The units of others that fail remain used until
// their windows end. The error is from one of the failures, or the context's.
func (b *Backend) giveBack(ctx context.Context, stop <-chan struct{}, settlements []driver.Settlement) error {
	var settling sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Pointer[error]
	for range min(giveBacks, len(settlements)) {
		settling.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(settlements); i = int(next.Add(1)) - 1 {
				select {
				case <-stop:
					b.keep(&settlements[i])
					continue
				default:
				}
				if err := b.settle(ctx, &settlements[i]); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	settling.Wait()
	if err := failed.Load(); err != nil {
		return *err // one is enough
	}
	return ctx.Err()
}

// settle makes st, which refunds units.
func (b *Backend) settle(ctx context.Context, st *driver.Settlement) error {
	ctx, cancel := context.WithTimeout(ctx, giveBackTime)
	defer cancel()
	_, err := b.wrapped.Settle(ctx, *st)
	switch {
	case err == nil:
		b.stats.givenBack.Add(1)
	case driver.MayHaveCharged(err):
		b.stats.stranded.Add(st.Charged.Charges()[0].Cost) // a second attempt might refund twice
	default:
		b.keep(st)
	}
	return err
}

// keep leaves st, which was not sent, to the next sweep. A stripe keeps at most as many as
// it has room for leases.
func (b *Backend) keep(st *driver.Settlement) {
	charges := st.Charged.Charges()
	s := b.stripeOf(b.nameOf(charges))
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.refunds) >= s.Most {
		b.stats.stranded.Add(charges[0].Cost)
		return
	}
	s.refunds = append(s.refunds, *st)
}

// Stats contains counts since New.
type Stats struct {
	Local     int64 `json:"local"`      // decisions made without a call
	Asked     int64 `json:"asked"`      // takes of the other backend
	Leases    int64 `json:"leases"`     // takes that leased units
	GivenBack int64 `json:"given_back"` // leases given back, in whole or in part

	// Stranded is the number of units that may count as used until their windows end although
	// no process holds them: leases that couldn't be given back, and units that a take without an
	// answer asked for beyond its request's cost. Found is how many of the latter a later
	// answer showed to be charged, so that this process holds them after all.
	Stranded int64 `json:"stranded"`
	Found    int64 `json:"found"`
}

type counters struct {
	takes, leases, givenBack, stranded, found atomic.Int64
}

// Stats returns the counts so far.
func (b *Backend) Stats() Stats {
	local := int64(0)
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		local += s.local
		s.mu.Unlock()
	}
	return Stats{
		Local: local, Asked: b.stats.takes.Load(), Leases: b.stats.leases.Load(),
		GivenBack: b.stats.givenBack.Load(), Stranded: b.stats.stranded.Load(), Found: b.stats.found.Load(),
	}
}
