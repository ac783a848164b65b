// Package shadow mirrors decisions of a serving backend to a candidate, and counts
// mismatches. It is for trying a backend with real traffic before a rollout.
//
// The serving backend answers, and no request waits for the candidate. A few
// goroutines send the candidate the same charges afterwards, in their order, from a
// short queue. If the candidate is slow or dead, charges that don't fit the queue are
// dropped, and counted.
//
// The candidate must keep its counts apart from the counts of backends that serve,
// under another prefix if the servers are the same. A client with fixed windows is
// mirrored from the start of its next window; a window opened midway would never
// line up with the serving backend's. A client whose take or settlement was
// dropped, or failed, is not compared until its windows have expired. Decisions without the
// shared counts are not mirrored.
package shadow

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Defaults of Options.
const (
	DefaultQueue    = 1024
	DefaultWorkers  = 8
	DefaultDeadline = 50 * time.Millisecond
)

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// Queue is the most decisions that wait for the candidate, and the most that
	// are remembered in case they are settled later. If zero, DefaultQueue.
	Queue int

	// Workers is how many decisions the candidate makes at once. Decisions of one
	// partition are made one after another. If zero, DefaultWorkers.
	Workers int

	// Deadline bounds a decision of the candidate. If zero, DefaultDeadline.
	Deadline time.Duration

	// OnDifference, if not nil, receives each decision that the candidate made
	// differently. Workers call it concurrently, each one call at a time.
	OnDifference func(serving, candidate decision.Decision)
}

// Backend is a driver.Backend that answers from one backend and compares another
// backend with it. It is safe for concurrent use.
type Backend struct {
	serving   driver.Backend
	candidate handoff.Store
	deadline  time.Duration
	differ    func(serving, candidate decision.Decision)

	workers []*worker
	stop    context.CancelFunc
	running sync.WaitGroup
	stats   stats.Counts[Stats]
}

var _ driver.Backend = (*Backend)(nil)

// New returns a Backend that answers as serving does, and compares candidate with
// it. Close ends its goroutines. Errors are about options and wrap
// quota.ErrInvalid. New panics if serving or candidate is nil.
func New(serving driver.Backend, candidate handoff.Store, options *Options) (*Backend, error) {
	switch {
	case serving == nil:
		panic("shadow: New: serving is nil")
	case candidate == nil:
		panic("shadow: New: candidate is nil")
	}
	o := *cmp.Or(options, new(Options))
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Queue, o.Workers, o.Deadline = cmp.Or(o.Queue, DefaultQueue), cmp.Or(o.Workers, DefaultWorkers), cmp.Or(o.Deadline, DefaultDeadline)
	b := &Backend{serving: serving, candidate: candidate, deadline: o.Deadline, differ: o.OnDifference}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	for range o.Workers {
		w := newWorker(b, max(o.Queue/o.Workers, 1))
		b.workers = append(b.workers, w)
		b.running.Go(func() { w.run(ctx) })
	}
	return b, nil
}

func (o *Options) validate() error {
	switch {
	case o.Queue < 0:
		return invalid.Errorf("shadow: Queue is %d; it must be positive, or 0 for %d", o.Queue, DefaultQueue)
	case o.Workers < 0:
		return invalid.Errorf("shadow: Workers is %d; it must be positive, or 0 for %d", o.Workers, DefaultWorkers)
	case o.Deadline < 0:
		return invalid.Errorf("shadow: Deadline is %v; it must be positive, or 0 for %v", o.Deadline, DefaultDeadline)
	}
	return nil
}

// Unwrap returns the backend that answers.
func (b *Backend) Unwrap() driver.Backend { return b.serving }

// Close stops the comparison, and returns when the last call of the candidate has
// returned. The Backend continues to serve. Close does not close the two backends.
func (b *Backend) Close() {
	b.stop()
	b.running.Wait()
}

// Take implements driver.Backend.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := b.serving.Take(ctx, r)
	if err == nil && !d.Degraded { // otherwise it has charged nothing to the counts that are compared
		b.show(r.Charges(), shown{request: r, decision: d})
	}
	return d, err
}

// Peek implements driver.Backend. The candidate does not receive peeks.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.serving.Peek(ctx, r)
}

// Settle implements driver.Backend.
func (b *Backend) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	d, err := b.serving.Settle(ctx, s)
	if err == nil && d.Allowed && !s.Charged.Degraded {
		b.show(s.Charged.Charges(), shown{settlement: &s, decision: d})
	}
	return d, err
}

// Reset implements driver.Backend.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	err := b.serving.Reset(ctx, r)
	if err == nil {
		b.show(r.Charges(), shown{request: r, resets: true})
	}
	return err
}

// show queues s for the candidate, or drops it if the queue is full.
func (b *Backend) show(charges []quota.Charge, s shown) {
	w := b.workers[names.Partition(charges[0].Partition)%uint64(len(b.workers))]
	select {
	case w.queue <- s:
	default:
		b.stats.Change(func(s *Stats) { s.Dropped++ })
		w.missed(charges, &s)
	}
}
