package redisbackend

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/backend/redis/internal/goredis"
	"github.com/weir-go/weir/backend/redis/internal/node"
	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/throttler/driver"
)

// Bounds of the decisions that one server is sent.
const (
	maxInFlight = 8                     // batches sent and not answered
	maxRecent   = 2                     // of these, batches sent just now
	sweepEvery  = 10 * time.Millisecond // between two sweeps of a full queue for callers that have left

	perBatch   = 256    // decisions in one batch
	aloneAfter = 64     // consecutive batches of one decision, after which no others are expected to join
	maxWaiting = 10_000 // decisions that wait for a batch

)

// A batch is recent for countsFor, and perLimit more for each limit of the decisions in flight,
// since a server makes one after another. A batch that takes longer is late.
const (
	countsFor = 500 * time.Microsecond
	perLimit  = 4 * time.Microsecond
)

// A batcher sends decisions to one server. Goroutines share round trips by group commit: while
// no more batches may be in flight, decisions wait, in order, and the next batch takes up to
// perBatch of them. Before a batch is sent, goroutines that are ready to run may ask and join
// it. No decision waits for a timer.
//
// Fewer batches are larger, which costs both sides less for each decision, so at most
// maxRecent are sent at once. A batch that takes longer, because the server is far away or its
// connection is dead, soon stops being recent: otherwise decisions would wait for half of a
// long round trip. While the last answer was late, no batch is recent: otherwise the last of a
// few simultaneous callers would wait for a whole round trip.
//
// A decision's time is over when its deadline has passed and the server was silent since
// j.begun: batches have ended without a reply, and no later batch has one. Otherwise this
// process is the cause of the delay, and the decision waits until its batch ends, or until it
// has been in the queue for maxQueued.
type batcher struct {
	client  goredis.Client
	server  *node.Server
	timeout time.Duration // of a batch, and of a decision without a deadline

	// See the constants.
	minWait      time.Duration
	countsFor    time.Duration
	mostInFlight int // maxInFlight, or fewer if the client has fewer connections

	// perSlot reports that the client finds a command's server by its first key, so
	// that only decisions of one partition share a call.
	perSlot atomic.Bool

	mu        sync.Mutex
	inFlight  []*batch
	waiting   []*job    // oldest first; jobs that their callers left stay until a batch or a sweep reaches them
	room      int       // in waiting
	gathering bool      // a batch is about to take the waiting jobs
	slow      bool      // the last answered batch was late
	singles   int       // consecutive batches of one decision
	swept     time.Time // when callers that had left were last removed from a full queue
}

var errCrowded = fmt.Errorf("%w: the queue of decisions to the server is full, at %d; %w", driver.ErrOverloaded, maxWaiting, driver.ErrNotSent)

// do sends j and returns when it has its reply, or at once when its context is done.
// The error wraps breaker.ErrOpen if the breaker is open, and an *unsentError if j was
// not sent, and never will be, because of its context.
//
// It and its callees have small frames: the memory of hundreds of goroutines that wait is much
// of a decision's cost.
func (b *batcher) do(j *job) error {
	if b.server.Breaker.Open() {
		return b.server.ErrOpen()
	}
	now := time.Now()
	j.begun = now
	if err := busy.HasTime(j.ctx); err != nil {
		return &unsentError{err}
	}
	canInline := b.setDeadline(j, now)
	b.mu.Lock()
	if b.gathering || !b.canSend(now) {
		err := b.enqueue(j, now)
		b.mu.Unlock()
		if err != nil {
			return err
		}
		return b.wait(j)
	}
	out := b.gather(j, now)
	switch {
	case len(b.waiting) == 0: // a batch that was in flight already has taken j
		b.end(out)
		b.mu.Unlock()
		batchPool.Put(out)
	case canInline && len(b.waiting) == 1 && b.waiting[0] == j && j.deadline.Sub(out.sentAt) >= inlineTime:
		b.waiting = slices.Delete(b.waiting, 0, 1)
		b.singles++
		out.inline, out.limits = true, j.limits
		j.stage.Store(claimed)
		out.jobs = append(out.jobs, j)
		b.mu.Unlock()
		b.sendInline(out)
		select {
		case <-j.done:
			return j.err
		default: // it is to be asked later
			return b.wait(j)
		}
	default:
		b.mu.Unlock()
		go b.sendLoop(out)
	}
	return b.wait(j)
}

// enqueue appends j to the queue.
func (b *batcher) enqueue(j *job, now time.Time) error {
	if len(b.waiting) >= b.room && now.Sub(b.swept) > sweepEvery { // otherwise each caller would search the queue
		b.swept = now
		b.waiting = slices.DeleteFunc(b.waiting, func(j *job) bool { return j.stage.Load() == abandoned })
	}
	switch {
	case b.server.Breaker.Open(): // it opened since; no batch would take j from the queue
		return b.server.ErrOpen()
	case len(b.waiting) >= b.room:
		return errCrowded
	}
	b.waiting = append(b.waiting, j)
	return nil
}

// gather returns a batch, already in flight, for j and for the jobs that join it. Goroutines
// that are ready to run go first, so that their decisions share its round trip: otherwise the
// first of many sends a batch of one, and the next waits for its reply. A caller that has long
// been alone does not yield, which takes a tenth of a round trip.
func (b *batcher) gather(j *job, now time.Time) *batch {
	out := batchPool.Get().(*batch)
	out.sentAt, out.limits, out.outcome = now, 0, node.Outcome{}
	alone := b.singles > aloneAfter && len(b.inFlight) == 0
	b.inFlight = append(b.inFlight, out)
	b.waiting = append(b.waiting, j)
	if alone {
		return out
	}
	b.gathering = true
	b.mu.Unlock()
	runtime.Gosched()
	b.mu.Lock()
	b.gathering = false
	out.sentAt = time.Now()
	return out
}

// setDeadline sets j's deadline. It reports whether the caller may send the batch itself. The
// caller then can't leave early, so the client has to keep the deadline, and the deadline has
// to be late enough for a batch to end with it. A context with a deadline may also be
// cancelable: the context of every HTTP request is, and another goroutine for the batch
// doubles the time of a single decision.
func (b *batcher) setDeadline(j *job, now time.Time) (canInline bool) {
	deadline, bounded := j.ctx.Deadline()
	canInline = bounded || j.timeout > 0 || j.ctx.Done() == nil
	if j.timeout == 0 && !bounded {
		j.timeout = b.timeout
	}
	if end := now.Add(j.timeout); j.timeout > 0 && (!bounded || end.Before(deadline)) {
		j.ownDeadline, deadline = true, end
	}
	j.deadline = deadline
	switch {
	case !b.client.KeepsDeadlines || deadline.Sub(now) < inlineTime:
		return false
	case bounded && !j.ownDeadline: // it leaves no time to connect
		return b.server.Answers.AnsweredSince(now.Add(-time.Second))
	}
	return canInline
}

// canSend reports whether another batch may be sent.
func (b *batcher) canSend(now time.Time) bool {
	switch {
	case len(b.inFlight) >= b.mostInFlight:
		return false
	case b.slow:
		return true
	}
	recent, since := 0, b.recentSince(now)
	for _, out := range b.inFlight {
		if out.sentAt.After(since) {
			recent++
		}
	}
	return recent < maxRecent
}

// recentSince returns the time after which a batch was sent if it is recent now.
func (b *batcher) recentSince(now time.Time) time.Time {
	limits := 0
	for _, out := range b.inFlight {
		limits += out.limits
	}
	return now.Add(-b.countsFor - time.Duration(limits)*perLimit)
}

// batchEnded records whether out, which has ended, was late.
func (b *batcher) batchEnded(out *batch, now time.Time) {
	if out.outcome.Answered && out.outcome.Err == nil { // a proxy may answer for the server
		b.slow = !out.sentAt.After(b.recentSince(now))
	}
}

// opened fails the waiting decisions. It is called when the breaker has opened.
func (b *batcher) opened() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.waiting {
		if j.stage.CompareAndSwap(waiting, failed) {
			j.finish(b.server.ErrOpen())
		}
	}
	b.waiting = slices.Delete(b.waiting, 0, len(b.waiting))
}

// sendLoop sends batches, in the memory of out, while decisions wait.
func (b *batcher) sendLoop(out *batch) {
	for b.fill(out) {
		b.run(out)
		runtime.Gosched() // callers that have their answers may ask again, and join the next
	}
	batchPool.Put(out)
}

// sendInline sends one batch in the goroutine of its only caller. If decisions wait
// afterwards, another goroutine continues.
func (b *batcher) sendInline(out *batch) {
	defer func() { // also if a hook of the client panics: the caller may recover
		b.mu.Lock()
		defer b.mu.Unlock()
		switch {
		case len(out.jobs) > 0:
			out.jobs[0].abandoned = true
			b.end(out) // and never use it again
		case len(b.waiting) > 0:
			go b.sendLoop(out)
		default:
			b.batchEnded(out, time.Now())
			b.end(out)
			batchPool.Put(out)
		}
	}()
	b.run(out)
}

// connectTime is how long a decision waits for a connection, in addition to the server's time:
// enough for five round trips of 50 ms, to dial, to agree on TLS, to log in and to select a
// database.
const connectTime = 250 * time.Millisecond

// run sends the decisions of out and gives each its outcome. It resends a call only if the
// server has certainly not run it: with the script's text, and by the server's own client if
// the client could not dial.
func (b *batcher) run(out *batch) {
	timeout := b.begin(out)
	c, again := b.client, false
	out.outcome, out.hung, out.spare = node.Outcome{}, false, nil
	start := out.sentAt // of the last try, as the outcome is
	for tries := 1; ; tries++ {
		if tries > 1 {
			start = time.Now()
		}
		decisions := len(out.jobs)
		out.send(b, c, again)
		end, _ := out.ctx.Deadline()
		unsent := out.deliver(b, start, end, tries < 3)
		b.server.Sent(start, decisions, out.outcome.Err)
		if !unsent {
			b.server.Record(&out.outcome, start, end, max(timeout, inlineTime))
			break
		}
		again = true
		if out.spare != nil {
			c = *out.spare
		}
	}
	out.inline = false
	if !out.ctx.Stop() {
		out.ctx = nil
	}
}

// begin starts the context of out, and returns the time that the server has for its reply. It
// ends with the last deadline of out's decisions, so that no decision is cut short by another's,
// but not before minWait, and not after the batcher's timeout. Until out is sent, the context
// lasts connectTime longer, or until the caller's deadline if out is in its goroutine.
func (b *batcher) begin(out *batch) (timeout time.Duration) {
	end := out.sentAt
	if !out.inline {
		end = end.Add(b.minWait)
	}
	for _, j := range out.jobs {
		if j.deadline.After(end) {
			end = j.deadline
		}
	}
	if latest := out.sentAt.Add(max(b.timeout, b.minWait)); latest.Before(end) {
		end = latest
	}
	if out.ctx == nil {
		out.ctx = busy.NewContext()
	}
	values := context.Background()
	if len(out.jobs) == 1 {
		values = out.jobs[0].ctx
	}
	connecting := connectTime
	if deadline, bounded := values.Deadline(); out.inline && bounded {
		connecting = min(connecting, max(deadline.Sub(end), 0))
	}
	out.ctx.Start(values, end, connecting)
	return end.Sub(out.sentAt)
}

func (b *batcher) end(out *batch) {
	i := slices.Index(b.inFlight, out)
	b.inFlight = slices.Delete(b.inFlight, i, i+1)
}

// fill fills out with waiting decisions. It ends out and returns false if no caller waits.
func (b *batcher) fill(out *batch) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.batchEnded(out, now)
	out.limits = 0
	count := 0
	for ; len(out.jobs) < perBatch && count < len(b.waiting); count++ {
		j := b.waiting[count]
		switch {
		case j.ctx.Err() != nil: // its caller has left, or is about to
		case j.deadline.Before(now) && b.server.Answers.SilentSince(j.begun):
			if j.stage.CompareAndSwap(waiting, failed) { // its caller may not ask for long whether the server is silent
				j.finish(errWaited)
			}
		case j.claim():
			out.jobs = append(out.jobs, j)
			out.limits += j.limits
		}
	}
	b.waiting = slices.Delete(b.waiting, 0, count)
	if len(out.jobs) == 0 {
		b.end(out)
		return false
	}
	if b.singles++; len(out.jobs) > 1 {
		b.singles = 0
	}
	out.sentAt = now
	return true
}
