package redisbackend

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/redis/internal/goredis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/observe"
)

const (
	checkEvery   = time.Second
	checkTimeout = 250 * time.Millisecond
)

// monitor asks each server about once a second, from the first use of the Backend until Close,
// for its time and its part in replication: one round trip of TIME and INFO. A part
// of the answer that the server denies, or that is not understood, stays unknown.
type monitor struct {
	shards   []*shard
	clock    *correctedClock
	maxSkew  time.Duration
	timeout  time.Duration // for a server's answer
	observer observe.Observer

	start   sync.Once
	first   chan struct{}   // closed after the first check of each shard
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	servers map[serverName]*checked
}

type serverName struct{ shard, server string }

// checked is a server as the monitor knows it.
type checked struct {
	ServerState
	of      *server // nil if it is sent no decisions
	reading reading // valid if SkewKnown
}

// ServerState is the state of a server as of its last check.
type ServerState struct {
	observe.Checked

	At      time.Time // of the check
	Primary bool      // takes are sent to it

	// Role is "master" or "slave", as the server reports it, or "" if it does not, for example
	// because the Redis user may not run INFO.
	Role string

	// LinkUp and Syncing report that a replica is connected to its primary, and that it copies
	// the primary's data. Redis notices a silent loss of the connection only after a minute
	// (repl-timeout); Lag and Cut do not depend on that.
	LinkUp  bool
	Syncing bool

	// Offset is the place in the sequence of writes that the server has reached.
	Offset int64

	// CutReason says why a replica is not asked. Nil unless Cut.
	CutReason error

	// SkewWithin is the most by which Skew may be wrong.
	SkewWithin time.Duration
}

func newMonitor(shards []*shard, own clock.Clock, margin time.Duration, o observe.Observer) *monitor {
	m := &monitor{
		shards: shards, clock: &correctedClock{own: own}, maxSkew: margin / 2, timeout: checkTimeout, observer: o,
		first: make(chan struct{}), servers: make(map[serverName]*checked),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// run begins the checks, once.
func (m *monitor) run() {
	m.start.Do(func() {
		var first sync.WaitGroup
		for _, s := range m.shards {
			first.Add(1)
			m.running.Go(func() { m.watch(s, first.Done) })
		}
		m.running.Go(func() {
			first.Wait()
			close(m.first)
		})
	})
}

// watch checks the servers of s until Close.
func (m *monitor) watch(s *shard, checkedOnce func()) {
	m.check(s)
	checkedOnce()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.check(s)
		case <-m.ctx.Done():
			return
		}
	}
}

// close ends the checks, and waits for those in flight.
func (m *monitor) close() {
	m.cancel()
	m.start.Do(func() { close(m.first) }) // so that no check begins later
	m.running.Wait()
}

// check checks the servers of s: the primary first, because replicas are compared with its
// offset.
func (m *monitor) check(s *shard) {
	began := time.Now()
	answers, all := m.askNodes(s, s.batcher.client, "primary", true)
	for _, a := range answers {
		s.writes.add(a.replication, a.asked)
		m.record(s, a)
	}
	s.demoted.Store(len(answers) == 1 && s.cluster == nil && answers[0].replication.role == roleReplica)
	m.correctClock()
	var checks sync.WaitGroup
	var some atomic.Bool // some replica's servers are unknown
	for _, r := range s.replicas {
		checks.Go(func() {
			if !m.checkReplica(s, r) {
				some.Store(true)
			}
		})
	}
	checks.Wait()
	if all && !some.Load() {
		m.forget(s.name, began)
	}
}

// checkReplica checks r. If r is current, it serves peeks from then on. All servers of a
// cluster must be current, since a peek may reach any replica. It reports whether the servers
// behind r are known.
func (m *monitor) checkReplica(s *shard, r *batcher) bool {
	answers, known := m.askNodes(s, r.client, r.server.name, false)
	current := len(answers) > 0
	for _, a := range answers {
		if a.err == nil {
			a.lag, a.cut = s.writes.lag(a.replication, time.Now())
		}
		current = current && a.err == nil && a.cut == nil
		m.record(s, a)
	}
	r.server.current.Store(current)
	return known
}

// serverOf returns the server of s that gave the answer a, or nil if s sends it no decisions.
func (s *shard) serverOf(a *answer) (of *server) {
	s.batchers(func(b *batcher) {
		if b.server.name == a.server && b.server.replica != a.primary {
			of = b.server
		}
	})
	return of
}

// answer is a server's answer to a check.
type answer struct {
	server  string
	primary bool
	asked   time.Time
	err     error

	reading     reading // if timed
	timed       bool
	replication replication

	lag time.Duration // of a replica
	cut error
}

// askNodes asks the server of s behind c or, for a cluster, all primaries or all replicas.
// known is false if they can't be listed.
func (m *monitor) askNodes(s *shard, c goredis.Client, name string, primaries bool) (answers []answer, known bool) {
	nodes, err := m.nodesOf(c, name, primaries)
	if err != nil {
		return []answer{{server: name, primary: primaries, asked: time.Now(), err: err}}, false
	}
	answers = make([]answer, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() {
			a := &answers[i]
			*a = m.ask(n.client)
			if a.timed && !m.isTimed(serverName{s.name, n.name}) { // it may have dialed: the next one is quicker
				if again := m.ask(n.client); again.timed {
					a.reading = a.reading.better(again.reading)
				}
			}
			a.server, a.primary = n.name, primaries
		})
	}
	all.Wait()
	return answers, true
}

// isTimed reports whether the clock of that server was read before.
func (m *monitor) isTimed(name serverName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.servers[name]
	return s != nil && s.SkewKnown
}

// node is one server.
type node struct {
	name   string
	client goredis.Client
}

// nodesOf returns the servers that c speaks to. A proxy counts as one.
func (m *monitor) nodesOf(c goredis.Client, name string, primaries bool) ([]node, error) {
	var forEach func(context.Context, func(context.Context, *redis.Client) error) error
	switch of := c.UniversalClient.(type) {
	case *redis.ClusterClient:
		if forEach = of.ForEachSlave; primaries {
			forEach = of.ForEachMaster
		}
	case *redis.Ring:
		forEach = of.ForEachShard
	default:
		return []node{{name, c}}, nil
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.timeout)
	defer cancel()
	found := make(chan node, 1024) // more than a cluster has
	err := c.Within(ctx, func() error {
		return forEach(ctx, func(_ context.Context, n *redis.Client) error {
			select {
			case found <- node{n.Options().Addr, goredis.Of(n)}:
			default:
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	nodes := make([]node, len(found))
	for i := range nodes {
		nodes[i] = <-found
	}
	return nodes, nil
}

// ask asks one server.
func (m *monitor) ask(c goredis.Client) (a answer) {
	ctx, cancel := context.WithTimeout(m.ctx, m.timeout)
	defer cancel()
	now := redis.NewTimeCmd(ctx, "time")
	info := redis.NewStringCmd(ctx, "info", "replication")
	a.asked = time.Now()
	asked := m.clock.own.Now()
	err := c.Within(ctx, func() error {
		pipe := c.Pipeline()
		_, _ = pipe.Process(ctx, now), pipe.Process(ctx, info) // queues them
		_, err := pipe.Exec(ctx)
		return err
	})
	switch {
	case err == nil:
	case ctx.Err() != nil, // the commands may be on their way: do not read them
		now.Err() == nil && info.Err() == nil: // they were not sent: the server refused the login
		a.err = err
		return a
	}
	answered := m.clock.own.Now()
	if t, err := now.Result(); err == nil {
		a.reading, a.timed = newReading(asked, answered, t), true
	} else if !isDenied(err) {
		a.err = err
	}
	if text, err := info.Result(); err == nil {
		a.replication = parseReplication(text)
	} else if !isDenied(err) {
		a.err = err
	}
	return a
}

// isDenied reports whether a server is well, but does not run a command: the user may
// not, or a proxy does not know it.
func isDenied(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "ERR") && !isFault(err)
}

// record stores a as the state of a server, and reports it to the observer.
func (m *monitor) record(in *shard, a answer) {
	if m.ctx.Err() != nil {
		return // Close ended the check
	}
	of := in.serverOf(&a)
	m.mu.Lock()
	name := serverName{in.name, a.server}
	s := m.servers[name]
	if s == nil {
		s = new(checked)
		m.servers[name] = s
	}
	switch {
	case a.timed && s.SkewKnown:
		s.reading = s.reading.better(a.reading)
	case a.timed:
		s.reading = a.reading
	}
	state := ServerState{
		Checked: observe.Checked{
			Backend: "redisbackend", Shard: in.name, Server: a.server, Replica: !a.primary,
			Cut: a.cut != nil, Lag: a.lag, SkewKnown: a.timed || s.SkewKnown, MaxSkew: m.maxSkew, Err: a.err,
		},
		At: a.asked, Primary: a.primary,
		Role: a.replication.role, LinkUp: a.replication.linkUp, Syncing: a.replication.syncing, Offset: a.replication.offset,
		CutReason: a.cut,
	}
	if state.SkewKnown {
		now := m.clock.own.Now()
		state.Skew = s.reading.skewAt(now)
		_, state.SkewWithin = s.reading.serverAt(now)
	}
	s.ServerState, s.of = state, of
	m.mu.Unlock()
	if of != nil {
		of.checked(func(known *observe.Checked) {
			if state.Open = known.Open; state.Open {
				state.Err = known.Err
			}
			*known = state.Checked
		})
	} else {
		m.observer.Checked(state.Checked)
	}
}

// forget forgets the servers of a shard that were not checked since then, because they have
// left a cluster.
func (m *monitor) forget(shard string, since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.servers, func(name serverName, s *checked) bool {
		return name.shard == shard && s.At.Before(since)
	})
}

// correctClock corrects the clock by the readings of all primaries.
func (m *monitor) correctClock() {
	m.mu.Lock()
	var readings []reading
	for _, s := range m.servers {
		if s.Primary && s.SkewKnown {
			readings = append(readings, s.reading)
		}
	}
	m.mu.Unlock()
	if len(readings) > 0 {
		m.clock.correct(readings)
	}
}

// states returns the states of all servers, by shard, primaries first.
func (m *monitor) states() []ServerState {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]ServerState, 0, len(m.servers))
	for _, s := range m.servers {
		state := s.ServerState
		if s.of != nil {
			cause := s.of.breaker.Cause()
			if state.Open = cause != nil; state.Err == nil {
				state.Err = cause
			}
		}
		all = append(all, state)
	}
	slices.SortFunc(all, func(a, b ServerState) int {
		if a.Primary != b.Primary && a.Shard == b.Shard {
			if a.Primary {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.Shard, b.Shard), strings.Compare(a.Server, b.Server))
	})
	return all
}
