package redisbackend

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler"
)

// Bounds of what one primary is sent.
const (
	maxFlights  = 2                     // on their way at once, but for late ones
	late        = 10 * time.Millisecond // how long a flight is on its way until it is late
	maxWithLate = 8                     // flights on their way at once, late ones included

	perFlight  = 256    // decisions in one flight
	perCall    = 16     // decisions in one call of a script
	maxWaiting = 10_000 // decisions that wait for a flight
)

// A line sends decisions to one primary. Goroutines share round trips by group
// commit: while maxFlights are in flight, decisions wait, in order, and the next
// flight takes all that wait. No decision waits for a timer.
//
// Few flights make large ones, which cost both sides less for each decision. One
// that is late, because its connection is dead or the server far away, does not
// count: waiting decisions leave with the next one that comes.
type line struct {
	client client

	// splits reports that the client finds a command's server by its first key, so
	// that only decisions of one partition share a call.
	splits atomic.Bool

	mu      sync.Mutex
	flights []*flight // on their way
	waiting queue
	room    int // in waiting
}

func newLine(c client, splits bool) *line {
	l := &line{client: c, room: maxWaiting}
	l.splits.Store(splits)
	return l
}

// unsentError is the error of a caller that left before its decision was sent. It
// does not wrap throttler.ErrUnavailable, because the outcome is known.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return "the decision was not sent: " + e.err.Error() }
func (e *unsentError) Unwrap() error { return e.err }

var errCrowded = fmt.Errorf("the queue of decisions to the primary is full, at %d; nothing was sent", maxWaiting)

// do sends j and returns when it has its reply, or at once when its context is
// done. The error is an *unsentError if j was not sent, and never will be.
func (l *line) do(j *job) error {
	if err := j.ctx.Err(); err != nil {
		return &unsentError{err}
	}
	l.mu.Lock()
	if !l.mayDepart() {
		if l.waiting.len >= l.room {
			l.mu.Unlock()
			return errCrowded
		}
		l.waiting.push(j)
		l.mu.Unlock()
		return l.wait(j)
	}
	f := flightPool.Get().(*flight)
	f.departed = time.Now()
	l.flights = append(l.flights, f)
	if l.waiting.len == 0 && l.client.ends(j.ctx) {
		j.boarded = true
		f.jobs = append(f.jobs, j)
		l.mu.Unlock()
		l.flyAlone(f)
		<-j.done
		return j.err
	}
	l.waiting.push(j)
	l.mu.Unlock()
	go l.fly(f)
	return l.wait(j)
}

// mayDepart reports whether another flight may be made.
func (l *line) mayDepart() bool {
	if len(l.flights) < maxFlights {
		return true
	}
	if len(l.flights) == maxWithLate {
		return false
	}
	onTime, now := 0, time.Now()
	for _, f := range l.flights {
		if now.Sub(f.departed) < late {
			onTime++
		}
	}
	return onTime < maxFlights
}

// wait returns when j has its outcome, or its context is done.
func (l *line) wait(j *job) error {
	select {
	case <-j.done:
		return j.err
	case <-j.ctx.Done():
		return l.leave(j)
	}
}

// leave returns the error of a caller whose context is done.
func (l *line) leave(j *job) error {
	l.mu.Lock()
	waited := j.waits
	if waited {
		l.waiting.remove(j)
	}
	l.mu.Unlock()
	if waited || !j.boarded {
		return &unsentError{j.ctx.Err()}
	}
	select {
	case <-j.done: // both at once: the answer counts
		return j.err
	default:
		j.abandoned = true
		return j.ctx.Err()
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
	for len(f.jobs) < perFlight && l.waiting.len > 0 {
		j := l.waiting.first
		l.waiting.remove(j)
		if j.ctx.Err() != nil {
			continue // its caller has left, or is about to
		}
		j.boarded = true
		f.jobs = append(f.jobs, j)
	}
	if len(f.jobs) == 0 {
		l.end(f)
		return false
	}
	f.departed = time.Now()
	return true
}

// job is one decision to send.
type job struct {
	ctx context.Context

	script    *script
	kind      kind
	partition []byte // the part of its keys that selects a cluster's slot
	keys      []arg  // of its charges
	packed    arg
	more      arg // a second argument, or nil

	work int // of its limits, as throttler.Limit.Work has it

	buf []byte // of keys and packed

	// Guarded by the line's mutex.
	next, previous *job
	waits, boarded bool

	// Set before done has one.
	reply   []byte  // of a decision about counts that do not move
	numbers []int64 // of another
	err     error
	done    chan struct{}

	abandoned bool // by its caller, while a flight holds it
}

// kind is a class of decisions. Decisions of one kind may share a call.
type kind int

const (
	simple kind = iota // what fast.lua decides: others in the call would keep it from doing so
	mixed
	lone // shares a call with none
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
func (b *Backend) newJob(ctx context.Context, charges []throttler.Charge) *job {
	j := jobPool.Get().(*job)
	j.ctx, j.script, j.kind = ctx, &decideScript, mixed
	for i := range charges {
		c := &charges[i]
		start := len(j.buf)
		j.buf = b.appendKey(j.buf, c)
		j.keys = append(j.keys, j.buf[start:len(j.buf):len(j.buf)])
		for k := range c.Policy.Limits {
			j.work += c.Policy.Limits[k].Work()
		}
	}
	j.partition = j.keys[0][:b.partitionBytes()]
	return j
}

// free returns j for reuse, unless a flight may still hold it.
func (j *job) free() {
	if j.abandoned {
		return
	}
	clear(j.keys)
	*j = job{keys: j.keys[:0], buf: j.buf[:0], done: j.done}
	jobPool.Put(j)
}

// finish gives j its outcome. The caller may reuse j from then on.
func (j *job) finish(err error) {
	j.err = err
	j.done <- struct{}{}
}

// queue is a list of jobs, oldest first.
type queue struct {
	first, last *job
	len         int
}

func (q *queue) push(j *job) {
	j.waits, j.previous = true, q.last
	if q.last == nil {
		q.first = j
	} else {
		q.last.next = j
	}
	q.last = j
	q.len++
}

func (q *queue) remove(j *job) {
	if j.previous == nil {
		q.first = j.next
	} else {
		j.previous.next = j.next
	}
	if j.next == nil {
		q.last = j.previous
	} else {
		j.next.previous = j.previous
	}
	j.waits, j.next, j.previous = false, nil, nil
	q.len--
}
