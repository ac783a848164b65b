// Package shadow mirrors decisions of a serving backend to a candidate, and counts
// mismatches. It is for trying a backend with real traffic before a rollout.
//
// Answers are the serving backend's, and no request waits for the candidate. A few
// goroutines send it the same charges afterwards, in their order, from a short
// queue. If the candidate is slow or dead, what does not fit the queue is dropped,
// and counted.
//
// The candidate must keep its counts apart from those of any backend that serves,
// under another prefix if the servers are the same. A client with fixed windows is
// mirrored from the start of its next window; a window opened midway would never
// line up with the serving backend's. A client whose take or settlement was
// dropped, or failed, is not compared until its windows have expired.
package shadow

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// Options say who serves and who is looked at.
type Options struct {
	// Serving answers. Required.
	Serving throttler.Backend

	// Candidate is looked at. Required.
	Candidate handoff.Store

	// Queue is how many decisions wait for the candidate at most, and how many
	// are remembered in case they are settled later. If zero, 1024.
	Queue int

	// Workers is how many decisions are shown to the candidate at once; those
	// of one partition always one after another. If zero, 8.
	Workers int

	// Deadline bounds a decision of the candidate. If zero, 50 ms.
	Deadline time.Duration

	// OnDifference is told of each decision that the candidate made
	// differently, by one goroutine at a time for each worker. May be nil.
	OnDifference func(serving, candidate throttler.Decision)
}

// Backend is a throttler.Backend that serves and shows. It is safe for
// concurrent use.
type Backend struct {
	serving   throttler.Backend
	candidate handoff.Store
	deadline  time.Duration
	differ    func(serving, candidate throttler.Decision)

	seed    maphash.Seed
	workers []*worker
	stop    context.CancelFunc
	running sync.WaitGroup
	counts  counts
}

var _ throttler.Backend = (*Backend)(nil)

// New returns a Backend, whose goroutines Close ends.
func New(o Options) (*Backend, error) {
	switch {
	case o.Serving == nil:
		return nil, errors.New("shadow: Serving is nil; it must be the backend that answers")
	case o.Candidate == nil:
		return nil, errors.New("shadow: Candidate is nil; it must be the backend to look at")
	case o.Queue < 0 || o.Workers < 0 || o.Deadline < 0:
		return nil, fmt.Errorf("shadow: Queue is %d, Workers %d, Deadline %v; none may be negative", o.Queue, o.Workers, o.Deadline)
	}
	if o.Queue == 0 {
		o.Queue = 1024
	}
	if o.Workers == 0 {
		o.Workers = 8
	}
	if o.Deadline == 0 {
		o.Deadline = 50 * time.Millisecond
	}
	b := &Backend{serving: o.Serving, candidate: o.Candidate, deadline: o.Deadline, differ: o.OnDifference, seed: maphash.MakeSeed()}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	for range o.Workers {
		w := newWorker(b, max(o.Queue/o.Workers, 1))
		b.workers = append(b.workers, w)
		b.running.Go(func() { w.run(ctx) })
	}
	return b, nil
}

// Close ends showing, and returns when the candidate is not called any more.
// The Backend goes on serving. The two backends stay open.
func (b *Backend) Close() {
	b.stop()
	b.running.Wait()
}

// Take implements throttler.Backend.
func (b *Backend) Take(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	began := time.Now()
	d, err := b.serving.Take(ctx, r)
	if err == nil {
		b.counts.serving.note(time.Since(began))
		b.show(r.Charges(), shown{request: r, decision: d})
	}
	return d, err
}

// Peek implements throttler.Backend. The candidate is not shown peeks.
func (b *Backend) Peek(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.serving.Peek(ctx, r)
}

// Settle implements throttler.Backend.
func (b *Backend) Settle(ctx context.Context, s throttler.Settlement) (throttler.Decision, error) {
	d, err := b.serving.Settle(ctx, s)
	if err == nil {
		b.show(s.Charged.Charges(), shown{settlement: &s, decision: d})
	}
	return d, err
}

// show queues what the candidate is to see, or drops it.
func (b *Backend) show(charges []throttler.Charge, s shown) {
	w := b.workers[maphash.String(b.seed, charges[0].Partition)%uint64(len(b.workers))]
	select {
	case w.queue <- s:
	default:
		b.counts.dropped.Add(1)
		w.missed(charges, &s)
	}
}
