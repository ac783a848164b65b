package redisbackend

import (
	"context"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/redis/internal/node"
	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// TakeTogether makes the takes r in one batch to the first shard.
func (b *Backend) TakeTogether(ctx context.Context, r ...driver.Request) ([]driver.Decision, []error) {
	out, jobs := &batch{sentAt: time.Now()}, make([]*job, len(r))
	for i := range r {
		j := b.newDecision(ctx, r[i].Now, r[i].Charges(), nil, nil)
		j.deadline = time.Now().Add(time.Minute)
		if jobs[i] = j; j.script != nil {
			out.jobs = append(out.jobs, j)
		}
	}
	if len(out.jobs) > 0 {
		b.shards[0].batcher.run(out)
	}
	decisions, errs := make([]driver.Decision, len(jobs)), make([]error, len(jobs))
	for i, j := range jobs {
		if j.script == nil {
			decisions[i], errs[i] = b.shards[0].takeHere(ctx, r[i], nil)
			j.free()
			continue
		}
		switch <-j.done; {
		case j.err != nil:
			errs[i] = j.err
		case j.reply[0] == repliesUndecided:
			decisions[i], errs[i] = b.shards[0].takeHere(ctx, r[i], nil)
		default:
			decisions[i], errs[i] = readTake(r[i], j.reply)
		}
		j.free()
	}
	return decisions, errs
}

// Call returns the script and the argument of the take r or, if s is not nil, of s.
func (b *Backend) Call(r driver.Request, s *driver.Settlement) (script string, packed []byte) {
	j := b.newDecision(context.Background(), r.Now, r.Charges(), nil, nil)
	if s != nil {
		j = b.newDecision(context.Background(), s.Now, s.Charged.Charges(), s, nil)
	}
	return j.script.text.(string), j.packed
}

// AllShapes makes this process compose scripts for all shapes that it sees: random tests have
// more shapes than any program.
func AllShapes() { shapes.Store(newShapes(lua.Decide, 1<<20)) }

// NoMoreShapes makes this process compose scripts for at most that many shapes until the test ends.
func NoMoreShapes(t *testing.T, most int) { changeShapes(t, lua.Decide, most) }

// changeShapes empties the table of shapes, and changes its composer and its bound until the
// test ends. Probes of other tests may use the table.
func changeShapes(t *testing.T, compose composer, most int) {
	old := shapes.Swap(newShapes(compose, most))
	t.Cleanup(func() { shapes.Store(old) })
}

// MaxShapes bounds the number of shapes with a script in a program.
const MaxShapes = maxShapes

// Swaps returns the number of decisions about c that wait for an exchange with the first
// shard, without the decisions of an exchange that has begun.
func (b *Backend) Swaps(c quota.Charge) (waiting int) {
	c.Partition = c.Key
	waiting, _ = b.shards[0].changes.Len(b.keysOf([]quota.Charge{c})[0])
	return waiting
}

// Batches returns how many batches to the primary of the first shard are in flight,
// and how many decisions wait for one.
func (b *Backend) Batches() (inFlight, waiting int) {
	to := b.shards[0].batcher
	to.mu.Lock()
	defer to.mu.Unlock()
	return len(to.inFlight), len(to.waiting)
}

// Waiting returns the number of decisions in that queue with callers that still wait.
func (b *Backend) Waiting() (n int) {
	to := b.shards[0].batcher
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, j := range to.waiting {
		if j.stage.Load() == waiting {
			n++
		}
	}
	return n
}

// HoldBatcher locks that batcher until release is called.
func (b *Backend) HoldBatcher() (release func()) {
	to := b.shards[0].batcher
	to.mu.Lock()
	return to.mu.Unlock
}

// SetRoom sets how many decisions may wait.
func (b *Backend) SetRoom(n int) {
	to := b.shards[0].batcher
	to.mu.Lock()
	defer to.mu.Unlock()
	to.room = n
}

// SetMinWait sets how long batches wait for replies after their callers have left.
func (b *Backend) SetMinWait(d time.Duration) { b.shards[0].batcher.minWait = d }

// Trip opens the breaker of the primary of the first shard.
func (b *Backend) Trip(err error) { b.shards[0].batcher.server.Breaker.Trip(time.Now(), err) }

// Probe probes that server, as if a take had failed.
func (b *Backend) Probe(ctx context.Context) error {
	s := b.shards[0].batcher.server
	s.Fail("weir:{alice}", time.Second)
	return s.Probe(ctx)
}

// Open reports whether that breaker is open.
func (b *Backend) Open() bool { return b.shards[0].batcher.server.Breaker.Open() }

// IsFault reports whether err means that a server does not serve.
var IsFault = node.IsFault

// MostInFlight returns how many batches may be in flight if they take long.
func (b *Backend) MostInFlight() int { return b.shards[0].batcher.mostInFlight }

// LimitsInFlight returns how many limits are in flight.
func (b *Backend) LimitsInFlight() (limits int) {
	to := b.shards[0].batcher
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, out := range to.inFlight {
		limits += out.limits
	}
	return limits
}

// SetFar makes no batch to that server count as recent.
func (b *Backend) SetFar() {
	to := b.shards[0].batcher
	to.mu.Lock()
	defer to.mu.Unlock()
	to.countsFor = -time.Hour
}

// SetNear makes each batch to that server count as recent.
func (b *Backend) SetNear() {
	to := b.shards[0].batcher
	to.mu.Lock()
	defer to.mu.Unlock()
	to.countsFor = time.Hour
}

// Late reports whether the last answer of that server was late.
func (b *Backend) Late() bool {
	to := b.shards[0].batcher
	to.mu.Lock()
	defer to.mu.Unlock()
	return to.slow
}

const (
	MaxInFlight = maxInFlight
	MaxRecent   = maxRecent
)

// WithoutChecks keeps checks from starting by themselves. Tests make them with Check, with
// enough time on a busy machine, and can count commands without them.
func (b *Backend) WithoutChecks() *Backend {
	b.monitor.Skip()
	b.monitor.Timeout = 20 * time.Second
	return b
}

// CheckHung is Check with a short timeout, for a server that does not answer.
func (b *Backend) CheckHung() {
	b.monitor.Timeout = 100 * time.Millisecond
	b.Check()
	b.monitor.Timeout = 20 * time.Second
}

// Check checks all servers once.
func (b *Backend) Check() {
	for _, s := range b.shards {
		b.monitor.Check(&s.Shard)
	}
}

// Pass makes the marks of the primaries' writes older by d.
func (b *Backend) Pass(d time.Duration) {
	for _, s := range b.shards {
		s.Age(d)
	}
}

const MaxLag = node.MaxLag
