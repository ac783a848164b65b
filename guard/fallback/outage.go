package fallback

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/cause"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

// Times of an outage.
const (
	lookEvery    = 100 * time.Millisecond // between looks at the shard
	graceTime    = 300 * time.Millisecond // from the first answer until the backend decides again
	quietTime    = 2 * time.Second        // without a failure, until the outage has ended
	closeTimeout = 500 * time.Millisecond // and replayTimeout for replays in progress then
)

// shard names a shard that fails; both fields are "" if an error does not name it.
type shard struct{ backend, name string }

// outage is a period without answers from a shard, up to quietTime after its last failure: a
// shard that answers now and then is in one outage.
type outage struct {
	b *Backend
	shard
	partition string // of the first decision that failed

	failed  atomic.Bool  // a call has failed since the last look
	answers atomic.Bool  // the shard answered at the last look
	ready   atomic.Bool  // it has answered for graceTime
	done    atomic.Bool  // nothing is held for it any more
	offset  atomic.Int64 // from Backend.elapsed, in ms, to the time of decisions

	mu         sync.Mutex // guards the fields below
	err        error      // the last failure
	cause      string     // the class of err
	failedAt   time.Duration
	silent     time.Duration // since when the shard has not answered, or
	answeredAt time.Duration // since when it has
}

// outageOf returns the outage that err, the failure of a decision about r, belongs to. It
// begins a new outage if the shard isn't in one.
func (b *Backend) outageOf(err error, r *driver.Request) *outage {
	var s shard
	var u *driver.UnavailableError
	if errors.As(err, &u) {
		s = shard{u.Backend, u.Shard}
	}
	now := b.elapsed()
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.outages[s]
	if o == nil {
		o = &outage{b: b, shard: s, silent: now, partition: strings.Clone(r.Charges()[0].Partition)}
		b.outages[s] = o
		if b.closed.Err() == nil {
			b.watches.Go(o.watch)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err, o.cause, o.failedAt = err, cause.Class(err), now
	o.failed.Store(true)
	o.offset.Store(r.Now - now.Milliseconds())
	return o
}

// failure returns the last failure.
func (o *outage) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// report reports the result of a request under a policy, or of units that are not handed over,
// which have a separate line in the log.
func (o *outage) report(policy string, result observe.Result) {
	e := observe.Failed{Backend: o.backend, Shard: o.name, Cause: "not handed over", Policy: policy, Result: result}
	if result != observe.ResultNotCharged {
		o.mu.Lock()
		e.Cause = o.cause
		o.mu.Unlock()
	}
	o.b.observer.Failed(e)
}

// silence returns for how long the shard has not answered.
func (o *outage) silence() time.Duration {
	if o.answers.Load() {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.elapsed() - o.silent
}

// now returns the time of decisions, in ms since the epoch.
func (o *outage) now() int64 { return o.offset.Load() + o.b.elapsed().Milliseconds() }

// watch hands over to the shard the units that it has missed, until it has not failed for
// quietTime.
//
// It begins at the first answer. The backend decides graceTime later: by then the other
// processes have noticed the answer, too, and handed over their units.
func (o *outage) watch() {
	for every.Wait(o.b.closed, lookEvery) {
		answeredFor := o.look()
		if answeredFor < 0 {
			continue
		}
		if answeredFor >= graceTime {
			o.ready.Store(true)
		}
		o.b.replayAll(o.b.closed, o)
		if o.b.end(o) {
			return
		}
	}
	o.finish()
}

// look returns for how long the shard has answered, or -1. It uses the backend's Health,
// because calls may fail for one key, or now and then, without an effect on other keys.
// Without Health, it uses the calls since the last look.
func (o *outage) look() time.Duration {
	answered := !o.failed.Swap(false)
	if o.b.health != nil {
		answered = !o.isDown()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.b.elapsed()
	switch before := o.answers.Swap(answered); {
	case before && !answered:
		o.ready.Store(false)
		o.silent = now
	case !before && answered:
		o.answeredAt = now
	}
	if !answered {
		return -1
	}
	return now - o.answeredAt
}

// isDown reports whether the backend says that the shard does not answer.
func (o *outage) isDown() bool {
	if o.b.health == nil {
		return false
	}
	_, down := o.b.health.Down(o.partition)
	return down
}

// finish hands over the units that it can when the Backend is closed.
func (o *outage) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if !o.isDown() {
		o.failed.Store(false)
		o.ready.Store(true)
		o.b.replayAll(ctx, o)
	}
	if o.b.holds(o) {
		o.report("", observe.ResultNotCharged)
	}
}

// end ends o if its shard has answered for quietTime, and nothing is held for it.
func (b *Backend) end(o *outage) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	o.mu.Lock()
	quiet := o.ready.Load() && b.elapsed()-o.failedAt >= quietTime
	o.mu.Unlock()
	if !quiet {
		return false
	}
	o.done.Store(true) // before the look: nothing is held for it from now on
	if b.holds(o) {
		o.done.Store(false)
		return false
	}
	delete(b.outages, o.shard)
	return true
}
