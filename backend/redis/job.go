package redisbackend

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler/quota"
)

// job is one decision to send: the call of a script or, without one, a read of keys.
type job struct {
	ctx context.Context

	script    *script // nil for a read, or if its shape has no script
	partition []byte  // the part of its keys that selects a cluster's slot
	keys      []arg   // of its charges
	costs     int     // in the reply: one for each charge in mode AtMost
	packed    arg     // the argument of a script that decides
	args      []arg   // the arguments of swap.lua

	limits, work int // the number of limits, and the sum of their Work

	buf   []byte   // of keys and packed
	shape [64]byte // room for most

	proves bool // a read, with INFO replication in front

	tries int  // that a Cluster answered by TRYAGAIN
	alone bool // it shares no call from now on

	timeout     time.Duration // the server's time; if 0, the context's deadline or, without one, the batcher's timeout
	begun       time.Time
	deadline    time.Time
	ownDeadline bool // before the context's
	timer       *time.Timer

	stage atomic.Int32

	// Set before done receives.
	reply        []byte   // of a script that decides
	values       []string // of swap.lua, or of a read, "" for a missing key
	proof        string   // if it proves
	heldByClient bool     // although its batch has ended
	err          error
	done         chan struct{}

	abandoned bool // a batch or the client holds it
}

// Stages of a job. It leaves the first stage once: a batch takes it, or finds that its time is
// over, the breaker opens, or its caller leaves.
const (
	waiting   = iota // for a batch
	claimed          // a batch has it
	failed           // it is never sent: the breaker has opened, or its time is over
	abandoned        // it is never sent: its caller has left
)

// claim takes j into a batch. It returns false if j's caller has left, or the breaker has
// opened.
func (j *job) claim() bool { return j.stage.CompareAndSwap(waiting, claimed) }

// arg is an argument of a command; a pointer to it makes no copy and no garbage.
type arg []byte

// MarshalBinary implements encoding.BinaryMarshaler, for go-redis.
func (a *arg) MarshalBinary() ([]byte, error) { return *a, nil }

// String returns the argument. A cluster's client finds a command's slot by fmt.Sprint of its
// first key, and hooks show commands by it.
func (a *arg) String() string { return string(*a) }

var jobPool = sync.Pool{New: func() any { return &job{done: make(chan struct{}, 1)} }}

// newJob returns a job about charges, with nothing packed yet.
func (b *Backend) newJob(ctx context.Context, charges []quota.Charge) *job {
	j := jobPool.Get().(*job)
	j.ctx = ctx
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
	j.partition = j.keys[0][:b.partitionBytes()]
	return j
}

// outcome returns j's error. It is called after a receive from done.
func (j *job) outcome() error {
	j.abandoned = j.heldByClient
	return j.err
}

// free returns j for reuse, unless a batch may still hold it.
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

// setTimer sets j's timer, and returns its channel.
func (j *job) setTimer(d time.Duration) <-chan time.Time {
	if j.timer == nil {
		j.timer = time.NewTimer(d)
	} else {
		j.timer.Reset(d)
	}
	return j.timer.C
}

// isBatched reports whether j may share a call with others of its script: a read and an
// exchange of states may not.
func (j *job) isBatched() bool { return j.script != nil && j.script != swapScript && !j.alone }

// compare orders decisions so that equal ones, which may share a call, are adjacent.
func (j *job) compare(o *job, perSlot bool) int {
	if order := j.script.order() - o.script.order(); order != 0 || !perSlot {
		return order
	}
	return bytes.Compare(j.partition, o.partition)
}
