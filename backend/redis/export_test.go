package redisbackend

import (
	"context"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// TakeTogether makes the decisions about all of r, of the first shard, in one call.
func (b *Backend) TakeTogether(ctx context.Context, r ...driver.Request) ([]driver.Decision, []error) {
	f, jobs := &flight{departed: time.Now()}, make([]*job, len(r))
	for i := range r {
		j := b.newTake(ctx, &r[i], nil)
		j.deadline = time.Now().Add(time.Minute)
		if jobs[i] = j; j.script != nil {
			f.jobs = append(f.jobs, j)
		}
	}
	if len(f.jobs) > 0 {
		f.run(b.shards[0].line)
	}
	decisions, errs := make([]driver.Decision, len(jobs)), make([]error, len(jobs))
	for i, j := range jobs {
		if j.script == nil {
			decisions[i], errs[i] = b.shards[0].takeHere(ctx, j, r[i], nil)
			j.free()
			continue
		}
		switch <-j.done; {
		case j.err != nil:
			errs[i] = j.err
		case j.reply[0] == repliesUndecided:
			decisions[i], errs[i] = b.shards[0].takeHere(ctx, j, r[i], nil)
		default:
			decisions[i], errs[i] = readTake(r[i], j.reply)
		}
		j.free()
	}
	return decisions, errs
}

// Call returns the script and the argument of a take or, if it settles one, of s.
func (b *Backend) Call(r driver.Request, s *driver.Settlement) (script string, packed []byte) {
	j := b.newTake(context.Background(), &r, nil)
	if s != nil {
		j = b.newSettlement(context.Background(), s, nil)
	}
	return j.script.text.(string), j.packed
}

// AllShapes makes this process compose scripts for all shapes that it meets: random tests
// have more than any program.
func AllShapes() { shapes.most = 1 << 20 }

// NoMoreShapes makes it compose scripts for so many shapes and no more, until the test ends.
func NoMoreShapes(t *testing.T, most int) { changeShapes(t, func() { shapes.most = most }) }

// changeShapes changes the table of shapes, which is empty then, until the test ends. Probes of
// other tests may use it.
func changeShapes(t *testing.T, with func()) {
	compose, most := shapes.compose, shapes.most
	locked := func(do func()) {
		shapes.mu.Lock()
		defer shapes.mu.Unlock()
		do()
		shapes.known.Store(nil)
	}
	t.Cleanup(func() { locked(func() { shapes.compose, shapes.most = compose, most }) })
	locked(with)
}

// MaxShapes is what programs have.
const MaxShapes = maxShapes

// Swaps returns how many decisions wait for an exchange with the first shard, those that
// one has begun for not counted.
func (b *Backend) Swaps() (waiting int) {
	t := &b.shards[0].swaps
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.byKey {
		waiting += len(w.waiting)
	}
	return waiting
}

// Line says how many flights to the primary of the first shard are on their way,
// and how many decisions wait for one.
func (b *Backend) Line() (flights, waiting int) {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.flights), l.waiting.len
}

// Waiting returns how many of that queue have callers that wait.
func (b *Backend) Waiting() (n int) {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	for j := l.waiting.first; j != nil; j = j.next {
		if j.stage.Load() == waiting {
			n++
		}
	}
	return n
}

// HoldLine keeps that line from everything that needs its lock.
func (b *Backend) HoldLine() (release func()) {
	l := b.shards[0].line
	l.mu.Lock()
	return l.mu.Unlock
}

// SetRoom sets how many decisions may wait.
func (b *Backend) SetRoom(n int) {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room = n
}

// SetPatience sets how long flights wait for replies although their callers have left.
func (b *Backend) SetPatience(d time.Duration) { b.shards[0].line.patience = d }

// Trip opens the breaker of the primary of the first shard.
func (b *Backend) Trip(err error) { b.shards[0].line.server.breaker.Trip(time.Now(), err) }

// Probe probes that server, as if a take had failed.
func (b *Backend) Probe(ctx context.Context) error {
	s := b.shards[0].line.server
	s.failed.Store(&failure{partition: []byte("weir:{alice"), had: time.Second})
	return s.probe(ctx)
}

// Open reports whether that breaker is open.
func (b *Backend) Open() bool { return b.shards[0].line.server.breaker.Open() }

// IsFault reports whether err says that a server does not serve.
var IsFault = isFault

// SetNearTime sets how long a flight of that line takes at most whose server is near.
func (b *Backend) SetNearTime(d time.Duration) { b.shards[0].line.nearTime = d }

// Near reports whether that server is near.
func (b *Backend) Near() bool {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isNear()
}

// FlightsByDistance returns how many flights a new line makes at once when flights have
// shown that its server is far away, and when one has shown that it is near.
func (b *Backend) FlightsByDistance() (flights [2]int) {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for i, took := range []time.Duration{nearTime + limitTime, nearTime - 1} {
		for range newFarAfter {
			f := &flight{departed: now.Add(-took), limits: 1, outcome: outcome{answered: true}}
			l.flights = []*flight{f}
			l.landed(f, now)
		}
		for l.flights = nil; l.mayDepart(now); flights[i]++ {
			l.flights = append(l.flights, &flight{departed: now})
		}
	}
	l.flights = nil
	return flights
}

// LimitsInFlight returns how many limits are on their way.
func (b *Backend) LimitsInFlight() (limits int) {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.flights {
		limits += f.limits
	}
	return limits
}

// SetFar makes that server one that is far away, until a flight is quick.
func (b *Backend) SetFar() {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = farAfter
}

const (
	MaxFlights  = maxFlights
	NearFlights = nearFlights
)

// WithoutChecks keeps checks from beginning by themselves: a test makes them with Check,
// which has time on a busy machine, and counts commands without them.
func (b *Backend) WithoutChecks() *Backend {
	b.monitor.start.Do(func() { close(b.monitor.first) })
	b.monitor.timeout = 20 * time.Second
	return b
}

// CheckHung is Check where a server does not answer.
func (b *Backend) CheckHung() {
	b.monitor.timeout = 100 * time.Millisecond
	b.Check()
	b.monitor.timeout = 20 * time.Second
}

// Check checks all servers once.
func (b *Backend) Check() {
	for _, s := range b.shards {
		b.monitor.check(s)
	}
}

// Pass makes all that is known of the primaries' writes d older.
func (b *Backend) Pass(d time.Duration) {
	for _, s := range b.shards {
		s.writes.mu.Lock()
		for i := range s.writes.marks {
			s.writes.marks[i].at = s.writes.marks[i].at.Add(-d)
		}
		s.writes.mu.Unlock()
	}
}

const MaxLag = maxLag
