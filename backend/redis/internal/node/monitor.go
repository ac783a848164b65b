package node

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

// Monitor asks each server about once a second, from the first use of the Backend until Close,
// for its time and its part in replication: one round trip of TIME and INFO. A part
// of the answer that the server denies, or that is not understood, stays unknown.
//
// A check that fails is reported to the observer and by States, and opens no breaker: failed
// decisions do. A replica that fails one serves no peeks until the next.
type Monitor struct {
	shards   []*Shard
	Clock    *correctedClock
	maxSkew  time.Duration
	Timeout  time.Duration // for a server's answer
	observer observe.Observer

	start   sync.Once
	First   chan struct{}   // closed after the first check of each shard
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	servers map[serverName]*checked
}

type serverName struct{ shard, server string }

// checked is a server as the monitor knows it.
type checked struct {
	State
	server  *Server // nil if it is sent no decisions
	reading reading // valid if SkewKnown
}

// State is the state of a server as of its last check: see redisbackend.ServerState.
type State struct {
	observe.Checked
	At         time.Time
	Primary    bool
	Role       string
	LinkUp     bool
	Syncing    bool
	Offset     int64
	CutReason  error
	SkewWithin time.Duration
}

// Shard is the servers of a shard.
type Shard struct {
	Name     string
	Primary  *Server
	Cluster  bool // Primary is a client of all nodes of a Redis Cluster
	Replicas []*Server
	ForEach  func(do func(*Server)) // calls do with each server

	Demoted atomic.Bool // the primary has become a replica, as of its last check
	writes  writes      // of the primary, to compare replicas with
}

// Lag returns how long a server that sent info, its reply to INFO replication, after now may be
// behind. It returns an error if the server is not known to be at most MaxLag behind.
func (s *Shard) Lag(info string, now time.Time) (time.Duration, error) {
	return s.writes.lag(parseReplication(info), now)
}

// Age makes the marks of the primary's writes older, in tests.
func (s *Shard) Age(d time.Duration) {
	s.writes.mu.Lock()
	defer s.writes.mu.Unlock()
	for i := range s.writes.marks {
		s.writes.marks[i].instant = s.writes.marks[i].instant.Add(-d)
	}
}

// NewMonitor returns a Monitor of shards. It begins with Run.
func NewMonitor(shards []*Shard, local clock.Clock, margin time.Duration, o observe.Observer) *Monitor {
	m := &Monitor{
		shards: shards, Clock: &correctedClock{local: local}, maxSkew: margin / 2, Timeout: checkTimeout, observer: o,
		First: make(chan struct{}), servers: make(map[serverName]*checked),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Run begins the checks, once.
func (m *Monitor) Run() {
	m.start.Do(func() {
		var first sync.WaitGroup
		for _, s := range m.shards {
			first.Add(1)
			m.running.Go(func() { m.watch(s, first.Done) })
		}
		m.running.Go(func() {
			first.Wait()
			close(m.First)
		})
	})
}

// watch checks the servers of s until Close.
func (m *Monitor) watch(s *Shard, checkedOnce func()) {
	m.Check(s)
	checkedOnce()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.Check(s)
		case <-m.ctx.Done():
			return
		}
	}
}

// Skip keeps checks from starting by themselves, in tests.
func (m *Monitor) Skip() { m.start.Do(func() { close(m.First) }) }

// Close ends the checks, and waits for those in flight.
func (m *Monitor) Close() {
	m.cancel()
	m.Skip() // so that no check begins later
	m.running.Wait()
}

// Check checks the servers of s: the primary first, because replicas are compared with its
// offset.
func (m *Monitor) Check(s *Shard) {
	began := time.Now()
	answers, complete := m.askNodes(s, s.Primary.Client, "primary", true)
	for _, a := range answers {
		s.writes.add(a.replication, a.sent)
		m.record(s, a)
	}
	s.Demoted.Store(len(answers) == 1 && !s.Cluster && answers[0].replication.role == roleReplica)
	m.correctClock()
	var checks sync.WaitGroup
	var partial atomic.Bool // some replica's servers are unknown
	for _, r := range s.Replicas {
		checks.Go(func() {
			if !m.checkReplica(s, r) {
				partial.Store(true)
			}
		})
	}
	checks.Wait()
	if complete && !partial.Load() {
		m.forget(s.Name, began)
	}
}

// checkReplica checks r. If r is current, it serves peeks from then on. All servers of a
// cluster must be current, since a peek may reach any replica. It reports whether the servers
// behind r are known.
func (m *Monitor) checkReplica(s *Shard, r *Server) bool {
	answers, complete := m.askNodes(s, r.Client, r.Name, false)
	current := len(answers) > 0
	for _, a := range answers {
		if a.err == nil {
			a.lag, a.cut = s.writes.lag(a.replication, time.Now())
		}
		current = current && a.err == nil && a.cut == nil
		m.record(s, a)
	}
	r.Current.Store(current)
	return complete
}

// serverOf returns the server of s that gave the answer a, or nil if s sends it no decisions.
func (s *Shard) serverOf(a *answer) (of *Server) {
	s.ForEach(func(server *Server) {
		if server.Name == a.server && server.Replica != a.primary {
			of = server
		}
	})
	return of
}

// answer is a server's answer to a check.
type answer struct {
	server  string
	primary bool
	sent    time.Time
	err     error

	reading     reading // if timed
	timed       bool
	replication replication

	lag time.Duration // of a replica
	cut error
}

// askNodes asks the server of s behind c or, for a cluster, all primaries or all replicas.
// complete is false if they can't be listed.
func (m *Monitor) askNodes(s *Shard, c goredis.Client, name string, primaries bool) (answers []answer, complete bool) {
	nodes, err := m.NodesOf(c, name, primaries)
	if err != nil {
		return []answer{{server: name, primary: primaries, sent: time.Now(), err: err}}, false
	}
	answers = make([]answer, len(nodes))
	var group sync.WaitGroup
	for i, n := range nodes {
		group.Go(func() {
			a := &answers[i]
			*a = m.ask(n.Client)
			if a.timed && !m.isTimed(serverName{s.Name, n.Name}) { // it may have dialed: the next one is quicker
				if again := m.ask(n.Client); again.timed {
					a.reading = a.reading.better(again.reading)
				}
			}
			a.server, a.primary = n.Name, primaries
		})
	}
	group.Wait()
	return answers, true
}

// isTimed reports whether the clock of that server was read before.
func (m *Monitor) isTimed(name serverName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.servers[name]
	return s != nil && s.SkewKnown
}

// Node is one server behind a client.
type Node struct {
	Name   string
	Client goredis.Client
}

// NodesOf returns the servers that c speaks to. A proxy counts as one.
func (m *Monitor) NodesOf(c goredis.Client, name string, primaries bool) ([]Node, error) {
	var forEach func(context.Context, func(context.Context, *redis.Client) error) error
	switch client := c.UniversalClient.(type) {
	case *redis.ClusterClient:
		if forEach = client.ForEachSlave; primaries {
			forEach = client.ForEachMaster
		}
	case *redis.Ring:
		forEach = client.ForEachShard
	default:
		return []Node{{name, c}}, nil
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.Timeout)
	defer cancel()
	found := make(chan Node, 1024) // more than a cluster has
	err := c.Run(ctx, func() error {
		return forEach(ctx, func(_ context.Context, n *redis.Client) error {
			select {
			case found <- Node{n.Options().Addr, goredis.Wrap(n)}:
			default:
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	nodes := make([]Node, len(found))
	for i := range nodes {
		nodes[i] = <-found
	}
	return nodes, nil
}

// ask asks one server.
func (m *Monitor) ask(c goredis.Client) (a answer) {
	ctx, cancel := context.WithTimeout(m.ctx, m.Timeout)
	defer cancel()
	now := redis.NewTimeCmd(ctx, "time")
	info := redis.NewStringCmd(ctx, "info", "replication")
	a.sent = time.Now()
	sent := m.Clock.local.Now()
	err := c.Run(ctx, func() error {
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
	answered := m.Clock.local.Now()
	if t, err := now.Result(); err == nil {
		a.reading, a.timed = newReading(sent, answered, t), true
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
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "ERR") && !IsFault(err)
}

// record stores a as the state of a server, and reports it to the observer.
func (m *Monitor) record(shard *Shard, a answer) {
	if m.ctx.Err() != nil {
		return // Close ended the check
	}
	server := shard.serverOf(&a)
	m.mu.Lock()
	name := serverName{shard.Name, a.server}
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
	state := State{
		Checked: observe.Checked{
			Backend: "redisbackend", Shard: shard.Name, Server: a.server, Replica: !a.primary,
			Cut: a.cut != nil, Lag: a.lag, SkewKnown: a.timed || s.SkewKnown, MaxSkew: m.maxSkew, Err: a.err,
		},
		At: a.sent, Primary: a.primary,
		Role: a.replication.role, LinkUp: a.replication.linkUp, Syncing: a.replication.syncing, Offset: a.replication.offset,
		CutReason: a.cut,
	}
	if state.SkewKnown {
		now := m.Clock.local.Now()
		state.Skew = s.reading.skewAt(now)
		_, state.SkewWithin = s.reading.serverAt(now)
	}
	s.State, s.server = state, server
	m.mu.Unlock()
	if server != nil {
		server.checked(func(event *observe.Checked) {
			if state.Open = event.Open; state.Open {
				state.Err = event.Err
			}
			*event = state.Checked
		})
	} else {
		m.observer.Checked(state.Checked)
	}
}

// forget forgets the servers of a shard that were not checked since then, because they have
// left a cluster.
func (m *Monitor) forget(shard string, since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.servers, func(name serverName, s *checked) bool {
		return name.shard == shard && s.At.Before(since)
	})
}

// correctClock corrects the clock by the readings of all primaries.
func (m *Monitor) correctClock() {
	m.mu.Lock()
	var readings []reading
	for _, s := range m.servers {
		if s.Primary && s.SkewKnown {
			readings = append(readings, s.reading)
		}
	}
	m.mu.Unlock()
	if len(readings) > 0 {
		m.Clock.correct(readings)
	}
}

// States returns the states of all servers, by shard, primaries first.
func (m *Monitor) States() []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	states := make([]State, 0, len(m.servers))
	for _, s := range m.servers {
		state := s.State
		if s.server != nil {
			cause := s.server.Breaker.Cause()
			if state.Open = cause != nil; state.Err == nil {
				state.Err = cause
			}
		}
		states = append(states, state)
	}
	slices.SortFunc(states, func(a, b State) int {
		if a.Primary != b.Primary && a.Shard == b.Shard {
			if a.Primary {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.Shard, b.Shard), strings.Compare(a.Server, b.Server))
	})
	return states
}
