package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// Bounds of what one server is sent.
const (
	maxFlights  = 8                     // on their way at once
	nearFlights = 2                     // of these to a server that is near, but for late ones
	late        = 10 * time.Millisecond // how long a flight is on its way until it is late

	perFlight  = 256    // decisions in one flight
	maxWaiting = 10_000 // decisions that wait for a flight

	// A decision whose time has passed asks again and again whether the server is
	// silent, each time after twice as long. In the queue it does so for maxQueued.
	askAgain  = 4 * time.Millisecond
	maxQueued = time.Second
)

// A flight is quick if it takes less than nearTime, and limitTime for each limit of the
// decisions that are on their way, since a server does one after another. A server is far
// away once farAfter flights in a row were not quick. Of a new one nothing is known, and
// newFarAfter show it.
const (
	nearTime    = 500 * time.Microsecond
	limitTime   = 4 * time.Microsecond
	farAfter    = 10_000
	newFarAfter = 64
)

// A line sends decisions to one server. Goroutines share round trips by group
// commit: while as many flights as may be are on their way, decisions wait, in order,
// and the next flight takes all that wait. No decision waits for a timer.
//
// Few flights make large ones, which cost both sides less for each decision, so a
// server that is near has nearFlights. One that is far away has maxFlights, because
// decisions would wait for half of a long round trip. The quickest of many flights says
// which it is: a near server that others keep busy is slow for most, and not for all.
//
// A flight that is late, because its connection is dead, does not count: waiting
// decisions leave with the next one that comes.
//
// While the server's breaker is open, decisions fail at once, and so do those that
// wait when it opens.
//
// A decision has had its time when its deadline has passed and the server was silent
// since it was asked for: flights have ended without a reply, and none that left later
// has one. If the server answers, or no flight knows, the delay is this process's, and
// the decision waits on: for the end of its flight, or for one, and that for maxQueued.
type line struct {
	client  client
	server  *server
	timeout time.Duration // of a flight, and of a decision whose context has no deadline

	// See the constants.
	patience    time.Duration
	nearTime    time.Duration
	mostFlights int // maxFlights, or fewer if the client has fewer connections

	// splits reports that the client finds a command's server by its first key, so
	// that only decisions of one partition share a call.
	splits atomic.Bool

	mu      sync.Mutex
	flights []*flight // on their way
	waiting queue
	room    int       // in waiting
	swept   time.Time // when callers that had left were last taken out of a full queue
	slow    int       // flights in a row that were not quick
}

// unsentError is the error of a caller that left before its decision was sent. It
// does not wrap driver.ErrUnavailable, because the outcome is known.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return "the decision was not sent: " + e.err.Error() }
func (e *unsentError) Unwrap() error { return e.err }

var (
	errCrowded = fmt.Errorf("%w: the queue of decisions to the server is full, at %d; %w", driver.ErrOverloaded, maxWaiting, driver.ErrNotSent)
	errQueued  = fmt.Errorf("%w: the decision was in the queue for %v; %w", driver.ErrOverloaded, maxQueued, driver.ErrNotSent)
	errWaited  = fmt.Errorf("%w in time: %w", driver.ErrNotSent, context.DeadlineExceeded)
)

// do sends j and returns when it has its reply, or at once when its context is done.
// The error is breaker.ErrOpen if the breaker is open, and an *unsentError if j was
// not sent, and never will be, because of its context.
func (l *line) do(j *job) error {
	if l.server.breaker.Open() {
		return breaker.ErrOpen
	}
	now := time.Now()
	j.asked = now
	if end, caller, ok := driver.ServerTime(j.ctx, now); ok {
		j.ctx, j.given = caller, end
	}
	if err := driver.HasTime(j.ctx); err != nil {
		return &unsentError{err}
	}
	mayFlyAlone := l.setDeadline(j, now)
	l.mu.Lock()
	if !l.mayDepart(now) {
		if l.waiting.len >= l.room && now.Sub(l.swept) > late { // else each caller would look at all that wait
			l.swept = now
			l.waiting.sweep()
		}
		err := error(nil)
		switch {
		case l.server.breaker.Open(): // since; no flight would fetch j from the queue
			err = breaker.ErrOpen
		case l.waiting.len >= l.room:
			err = errCrowded
		default:
			l.waiting.push(j)
		}
		l.mu.Unlock()
		if err != nil {
			return err
		}
		return l.wait(j)
	}
	f := flightPool.Get().(*flight)
	f.departed, f.limits, f.outcome = now, 0, outcome{}
	l.flights = append(l.flights, f)
	if l.waiting.len == 0 && mayFlyAlone {
		f.alone, f.limits = true, j.limits
		j.stage.Store(boarded)
		f.jobs = append(f.jobs, j)
		l.mu.Unlock()
		l.flyAlone(f)
		<-j.done
		return j.outcome()
	}
	l.waiting.push(j)
	l.mu.Unlock()
	go l.fly(f)
	return l.wait(j)
}

// setDeadline sets j's deadline. It reports whether the caller may make the flight
// itself: it can then not leave early, so the client has to keep the deadline, and
// the deadline has to be late enough for a flight to end with it. That it may be
// canceled is no reason against it: every HTTP request's context may be, and another
// goroutine for the flight doubles how long a lone decision takes.
func (l *line) setDeadline(j *job, now time.Time) (mayFlyAlone bool) {
	deadline, bounded := j.ctx.Deadline()
	switch given := j.given.Sub(now); {
	case !j.given.IsZero() && (j.limit == 0 || given < j.limit):
		j.limit = max(given, 1)
	case j.limit == 0 && !bounded:
		j.limit = l.timeout
	}
	if own := now.Add(j.limit); j.limit > 0 && (!bounded || own.Before(deadline)) {
		j.ownDeadline, deadline = true, own
	}
	j.deadline = deadline
	return l.client.keepsDeadlines && (bounded || !j.given.IsZero() || j.ctx.Done() == nil) && deadline.Sub(now) >= aloneTime
}

// mayDepart reports whether another flight may be made.
func (l *line) mayDepart(now time.Time) bool {
	switch {
	case len(l.flights) < nearFlights:
		return true
	case len(l.flights) >= l.mostFlights:
		return false
	case !l.isNear():
		return true
	}
	onTime := 0
	for _, f := range l.flights {
		if now.Sub(f.departed) < late {
			onTime++
		}
	}
	return onTime < nearFlights
}

func (l *line) isNear() bool { return l.slow < farAfter }

// landed takes note of how long f was on its way, until now.
func (l *line) landed(f *flight, now time.Time) {
	limits := 0
	for _, f := range l.flights {
		limits += f.limits
	}
	switch {
	case f.outcome.err != nil || !f.outcome.answered: // a proxy may answer for the server
	case now.Sub(f.departed) < l.nearTime+time.Duration(limits)*limitTime:
		l.slow = 0
	case l.isNear():
		l.slow++
	}
}

// wait returns when j has its outcome, or has had its time, or its caller has left.
func (l *line) wait(j *job) error {
	ended, timeUp := j.ctx.Done(), (<-chan time.Time)(nil)
	if j.ownDeadline {
		timeUp = j.setTimer(j.limit)
	}
	again := askAgain
	for {
		select {
		case <-j.done:
			return j.outcome()
		case <-ended:
			if err := driver.Ended(j.ctx); err != nil {
				return l.leave(j, err)
			}
			ended = nil
		case <-timeUp:
		}
		switch now := time.Now(); {
		case l.server.answers.SilentSince(j.asked):
			return j.leave(errWaited, context.DeadlineExceeded)
		case now.Sub(j.asked) >= max(maxQueued, j.deadline.Sub(j.asked)) && j.stage.Load() == waiting:
			return j.leave(errQueued, errQueued)
		}
		timeUp = j.setTimer(again)
		again *= 2
	}
}

// setTimer sets j's timer, and returns its channel.
func (j *job) setTimer(d time.Duration) <-chan time.Time {
	if j.timer == nil {
		j.timer = time.NewTimer(d)
	} else {
		j.timer.Reset(d)
	}
	return j.timer.C
}

// leave returns the error of a caller that left for err. A deadline says that the server
// did not answer only if that is known, and this process was not late itself.
func (l *line) leave(j *job, err error) error {
	unsent, sent := error(&unsentError{err}), err
	if !errors.Is(err, context.Canceled) {
		if l.server.answers.SilentSince(j.asked) {
			unsent = errWaited
		} else if l.server.answers.AnsweredSince(j.asked) || time.Since(j.deadline) > askAgain {
			sent = fmt.Errorf("%w: %w", driver.ErrOverloaded, err)
		}
	}
	return j.leave(unsent, sent)
}

// leave returns the error of a caller that leaves: unsent if j was not sent, and never
// will be. It takes no lock: thousands of deadlines may pass at once, and with a mutex,
// which is handed from one to the next, the last would leave much later.
func (j *job) leave(unsent, sent error) error {
	if j.stage.CompareAndSwap(waiting, left) {
		j.abandoned = true // the queue has it until a flight takes what waits
		return unsent
	}
	if j.stage.Load() == failed {
		<-j.done // which has it at once
		return j.outcome()
	}
	select {
	case <-j.done: // both at once: the answer counts
		return j.outcome()
	default:
		j.abandoned = true
		return sent
	}
}

// opened fails the decisions that wait. It is called when the breaker has opened.
func (l *line) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.waiting.len > 0 {
		if j := l.waiting.pop(); j.stage.CompareAndSwap(waiting, failed) {
			j.finish(breaker.ErrOpen)
		}
	}
}

// fly makes flights, in the place of f, while decisions wait.
func (l *line) fly(f *flight) {
	for l.board(f) {
		f.run(l)
		runtime.Gosched() // callers that have their answers may ask again, and join the next
	}
	flightPool.Put(f)
}

// flyAlone makes one flight in the goroutine of its only caller. If decisions wait
// afterwards, another goroutine continues.
func (l *line) flyAlone(f *flight) {
	defer func() { // also if a hook of the client panics: the caller may recover
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case len(f.jobs) > 0:
			f.jobs[0].abandoned = true
			l.end(f) // and never use it again
		case l.waiting.len > 0:
			go l.fly(f)
		default:
			if !l.isNear() { // else a lone caller is spared the look at the clock
				l.landed(f, time.Now())
			}
			l.end(f)
			flightPool.Put(f)
		}
	}()
	f.run(l)
}

func (l *line) end(f *flight) {
	i := slices.Index(l.flights, f)
	l.flights = slices.Delete(l.flights, i, i+1)
}

// board fills f with waiting decisions. If there are none, f ends.
func (l *line) board(f *flight) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.landed(f, now)
	f.limits = 0
	for len(f.jobs) < perFlight && l.waiting.len > 0 {
		j := l.waiting.pop()
		if driver.Ended(j.ctx) != nil || j.deadline.Before(now) && l.server.answers.SilentSince(j.asked) {
			continue // its caller has left, or is about to
		}
		if j.board() {
			f.jobs = append(f.jobs, j)
			f.limits += j.limits
		}
	}
	if len(f.jobs) == 0 {
		l.end(f)
		return false
	}
	f.departed = now
	return true
}

// job is one decision to send: the call of a script or, without one, a read of keys.
type job struct {
	ctx context.Context

	script    *script // nil for a read, and until its shape has one
	kind      kind
	partition []byte // the part of its keys that selects a cluster's slot
	keys      []arg  // of its charges
	packed    arg    // what a script that decides gets
	args      []arg  // what swap.lua gets

	limits, work int // how many, and their work, as quota.Limit.Work has it

	buf     []byte // of keys, up to keysEnd, and packed
	keysEnd int
	shape   [64]byte // room for most

	proves bool // a read: replication is asked for in front of it

	given       time.Time     // when the server's time ends, if the context says so
	limit       time.Duration // to wait for the answer, if the context waits longer; 0 for the line's timeout
	asked       time.Time
	deadline    time.Time
	ownDeadline bool // before the context's
	timer       *time.Timer

	stage atomic.Int32
	next  *job // in the queue; guarded by the line's mutex

	// Set before done has one.
	reply  []byte   // of a script that decides
	values []string // of swap.lua, or of a read, "" for a missing key
	proof  string   // if it proves
	left   bool     // the client still holds it, although its flight has ended
	err    error
	done   chan struct{}

	abandoned bool // a flight or the client holds it
}

// Stages of a job. A flight that takes it, a breaker that opens and a caller that leaves
// all change the first, and one of them does.
const (
	waiting = iota // for a flight
	boarded        // a flight has it
	failed         // it is never sent: the breaker has opened
	left           // it is never sent: its caller has left
)

// board reports whether j's caller has not left before, and waits for the outcome now.
func (j *job) board() bool { return j.stage.CompareAndSwap(waiting, boarded) }

// kind says whether a job may share a call with others.
type kind int

const (
	batched   kind = iota // with those of its script
	unbatched             // it is swap.lua's, or a read
)

// arg is an argument of a command; a pointer to it makes no copy and no garbage.
type arg []byte

// MarshalBinary implements encoding.BinaryMarshaler, for go-redis.
func (a *arg) MarshalBinary() ([]byte, error) { return *a, nil }

// String returns the argument: a cluster's client finds a command's slot by what
// fmt.Sprint makes of its first key, and hooks show commands by it.
func (a *arg) String() string { return string(*a) }

var jobPool = sync.Pool{New: func() any { return &job{done: make(chan struct{}, 1)} }}

// newJob returns a job about charges, with nothing packed yet.
func (b *Backend) newJob(ctx context.Context, charges []quota.Charge) *job {
	j := jobPool.Get().(*job)
	j.ctx, j.kind = ctx, batched
	for i := range charges {
		c := &charges[i]
		start := len(j.buf)
		j.buf = b.appendKey(j.buf, c)
		j.keys = append(j.keys, j.buf[start:len(j.buf):len(j.buf)])
		j.limits += len(c.Policy.Limits)
		for k := range c.Policy.Limits {
			j.work += c.Policy.Limits[k].Work()
		}
	}
	j.partition, j.keysEnd = j.keys[0][:b.partitionBytes()], len(j.buf)
	return j
}

// sameKeys returns a new job about the keys of j.
func (j *job) sameKeys() *job {
	o := jobPool.Get().(*job)
	o.limits, o.work = j.limits, j.work
	o.buf, o.keysEnd = append(o.buf, j.buf[:j.keysEnd]...), j.keysEnd
	start := 0
	for _, key := range j.keys {
		o.keys = append(o.keys, o.buf[start:start+len(key):start+len(key)])
		start += len(key)
	}
	o.partition = o.keys[0][:len(j.partition)]
	return o
}

// outcome returns j's error, after done had one.
func (j *job) outcome() error {
	j.abandoned = j.left
	return j.err
}

// free returns j for reuse, unless a flight may still hold it.
func (j *job) free() {
	if j.abandoned {
		return
	}
	if j.timer != nil {
		j.timer.Stop()
	}
	clear(j.keys)
	*j = job{keys: j.keys[:0], buf: j.buf[:0], timer: j.timer, done: j.done}
	jobPool.Put(j)
}

// finish gives j its outcome. The caller may reuse j from then on.
func (j *job) finish(err error) {
	j.err = err
	j.done <- struct{}{}
}

// queue is a list of jobs, oldest first. Those whose callers have left stay until a
// flight, which begins with the oldest, comes to them, or a sweep of a full queue.
type queue struct {
	first, last *job
	len         int
}

func (q *queue) push(j *job) {
	if q.last == nil {
		q.first = j
	} else {
		q.last.next = j
	}
	q.last = j
	q.len++
}

func (q *queue) pop() *job {
	j := q.first
	q.first, j.next = j.next, nil
	if q.first == nil {
		q.last = nil
	}
	q.len--
	return j
}

// sweep takes out the jobs whose callers have left.
func (q *queue) sweep() {
	for n := q.len; n > 0; n-- {
		if j := q.pop(); j.stage.Load() != left {
			q.push(j)
		}
	}
}
