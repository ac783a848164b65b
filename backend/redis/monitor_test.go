package redisbackend_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// A link connects a replica to its primary.
type link struct{ passing sync.Mutex }

// hang makes the link pass nothing on and lose nothing, like a network partition, until the
// test's cleanup.
func (l *link) hang(t *testing.T) {
	l.passing.Lock()
	t.Cleanup(l.passing.Unlock)
}

// replicaOver starts a replica of primary, and returns the link between the two.
func replicaOver(t *testing.T, primary *testserver.RedisServer) (*testserver.RedisServer, *link) {
	t.Helper()
	l := new(link)
	relay := testserver.Relay(t, primary.Addr, func([]byte) bool {
		l.passing.Lock()
		defer l.passing.Unlock()
		return false
	})
	replica := testserver.Redis(t)
	host, port, _ := net.SplitHostPort(relay)
	c := newClient(t, replica.Addr)
	if err := c.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica to follow", func() bool {
		return strings.Contains(c.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	return replica, l
}

// A replicated is a bench over a shard with a replica that is up to date.
type replicated struct {
	bench
	policy           *throttler.Policy
	primary, replica *testserver.RedisServer
	link             *link
}

func newReplicated(t *testing.T) *replicated {
	r := &replicated{policy: policy("core", perHour(100)), primary: testserver.Redis(t)}
	r.replica, r.link = replicaOver(t, r.primary)
	r.client = newClient(t, r.primary.Addr)
	r.over(t, newClient(t, r.replica.Addr))
	r.take(t, 10)
	r.follow(t)
	r.backend.Check()
	return r
}

// over gives r a new backend, which waits long for the replica.
func (r *replicated) over(t *testing.T, replica redis.UniversalClient) {
	t.Helper()
	r.backend = newBackend(t, []redisbackend.Shard{{Name: "a", Primary: r.client, Replicas: []redis.UniversalClient{replica}}},
		&redisbackend.Options{ReplicaTimeout: 20 * time.Second})
	r.clock = clock.NewManual(t0)
	r.Throttler = throttler.New(r.backend, &throttler.Options{Clock: r.clock})
}

func (r *replicated) take(t *testing.T, cost int64) {
	t.Helper()
	if d, err := r.Take(t.Context(), throttler.Charge{Policy: r.policy, Key: "alice", Cost: cost}); err != nil || !d.Allowed {
		t.Fatalf("take: %v, error %v", d, err)
	}
}

// follow waits until the replica has the primary's count.
func (r *replicated) follow(t *testing.T) {
	t.Helper()
	key := r.backend.Locate(r.policy.Charge("alice")).Key
	c := newClient(t, r.replica.Addr)
	want := r.client.Get(t.Context(), key).Val()
	eventually(t, "the replica to catch up", func() bool { return c.Get(t.Context(), key).Val() == want })
}

// peeks checks the used units of a peek, and whether the replica was asked.
func (r *replicated) peeks(t *testing.T, want int64, onReplica bool) {
	t.Helper()
	c := newClient(t, r.replica.Addr)
	before := commandStats(t, c)["get"].calls
	d, err := r.Peek(t.Context(), r.policy.Charge("alice"))
	if err != nil || d.Limit(0).Used != want {
		t.Errorf("peek: %v, error %v; want %d used", d, err, want)
	}
	if asked := commandStats(t, c)["get"].calls > before; asked != onReplica {
		t.Errorf("the replica was asked: %v, want %v", asked, onReplica)
	}
}

// state returns the known state of the replica.
func (r *replicated) state(t *testing.T) redisbackend.ServerState {
	t.Helper()
	all := r.backend.Servers()
	if len(all) != 2 || all[0].Server != "primary" || all[1].Server != "replica 0" {
		t.Fatalf("Servers: %+v; want the primary and replica 0", all)
	}
	return all[1]
}

func (r *replicated) isCut(t *testing.T, want string) {
	t.Helper()
	s := r.state(t)
	if got := ""; s.CutReason != nil {
		if got = s.CutReason.Error(); !s.Cut || !strings.Contains(got, want) || want == "" {
			t.Errorf("cut: %v, because %q; want %q", s.Cut, got, want)
		}
	} else if s.Cut || want != "" {
		t.Errorf("cut: %v, without a reason; want %q", s.Cut, want)
	}
}

func TestPeekAsksAReplicaThatIsCurrent(t *testing.T) {
	r := newReplicated(t)
	r.isCut(t, "")
	r.peeks(t, 10, true)
	for range 5 { // a replica slightly behind is asked too
		r.take(t, 1)
		r.backend.Check()
		r.isCut(t, "")
	}
	r.follow(t)
	r.peeks(t, 15, true)
	if s := r.state(t); s.Role != "slave" || !s.LinkUp || s.Syncing || s.Lag > redisbackend.MaxLag || s.Offset == 0 || s.Err != nil || !s.SkewKnown {
		t.Errorf("the replica: %+v", s)
	}
}

func TestReplicaIsNotAskedBeforeItsFirstCheck(t *testing.T) {
	r := newReplicated(t)
	r.over(t, newClient(t, r.replica.Addr))
	r.peeks(t, 10, false)
	r.backend.Check()
	r.peeks(t, 10, true)
}

// A replica that is cut off from its primary without noticing reports its link as up for a
// minute.
func TestPeekDoesNotAskAReplicaThatIsCutOff(t *testing.T) {
	r := newReplicated(t)
	r.link.hang(t)
	r.take(t, 90)
	r.backend.Pass(redisbackend.MaxLag)
	r.peeks(t, 100, true) // asked, and not believed
	r.peeks(t, 100, false)
	r.backend.Check()
	r.isCut(t, "more than 3s behind")
	r.peeks(t, 100, false)
	if s := r.state(t); !s.LinkUp || !s.Cut {
		t.Errorf("the replica: %+v; want the link up and the replica cut", s)
	}
}

func TestPeekDoesNotAskAReplicaThatWasPromoted(t *testing.T) {
	r := newReplicated(t)
	c := newClient(t, r.replica.Addr)
	if err := c.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	r.take(t, 90)
	d, err := r.Peek(t.Context(), r.policy.Charge("alice"))
	if err != nil || d.Limit(0).Used != 100 {
		t.Errorf("the first peek after a promotion: %v, error %v; want 100 used", d, err)
	}
	r.peeks(t, 100, false)
	r.backend.Check()
	r.isCut(t, "become a primary")
}

func TestPeekDoesNotAskAReplicaThatFollowsAnother(t *testing.T) {
	r := newReplicated(t)
	other := testserver.Redis(t)
	host, port, _ := net.SplitHostPort(other.Addr)
	c := newClient(t, r.replica.Addr)
	if err := c.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica to follow the other", func() bool {
		return strings.Contains(c.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	r.peeks(t, 10, true) // asked, and not believed
	r.peeks(t, 10, false)
	r.backend.Check()
	r.isCut(t, "follows another primary")
}

func TestPeekDoesNotAskARestartedReplica(t *testing.T) {
	r := newReplicated(t)
	if err := r.replica.Restart(); err != nil { // as a primary, and empty
		t.Fatal(err)
	}
	r.peeks(t, 10, true) // asked, and not believed
	r.peeks(t, 10, false)
}

// A client that finds its replicas through Sentinel may reach another one with each
// connection: a check of one replica proves nothing about the others.
func TestPeekProvesWhatItShowsByItsOwnConnection(t *testing.T) {
	r := newReplicated(t)
	well := testserver.RedisReplica(t, r.primary)
	r.link.hang(t)
	r.take(t, 90)
	var target atomic.Pointer[string]
	target.Store(&well.Addr)
	o := patient(well.Addr)
	o.ConnMaxLifetime = 1 // each use dials
	o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, *target.Load())
	}
	either := connect(t, o)
	r.over(t, either)
	followed := newClient(t, well.Addr)
	key := r.backend.Locate(r.policy.Charge("alice")).Key
	eventually(t, "the other replica to catch up", func() bool {
		return followed.Get(t.Context(), key).Val() == r.client.Get(t.Context(), key).Val()
	})
	r.backend.Check()
	r.isCut(t, "")
	target.Store(&r.replica.Addr)
	r.peeks(t, 100, true) // asked, and not believed
	r.peeks(t, 100, false)
}

// A cluster's replicas serve peeks while all of them are current.
func TestReplicasOfACluster(t *testing.T) {
	t.Parallel() // it waits most of the time
	primary := startCluster(t, 1)[0]
	bus, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(bus.Addr().String())
	_ = bus.Close()
	replica := testserver.Redis(t, "--cluster-enabled", "yes", "--cluster-port", port)
	node, admin := newClient(t, replica.Addr), newClient(t, primary.Addr)
	host, own, _ := net.SplitHostPort(replica.Addr)
	if err := admin.Do(t.Context(), "cluster", "meet", host, own, port).Err(); err != nil {
		t.Fatal(err)
	}
	id := admin.Do(t.Context(), "cluster", "myid").String()
	id = id[strings.LastIndex(id, " ")+1:]
	eventually(t, "the replica to know the primary", func() bool { return node.ClusterReplicate(t.Context(), id).Err() == nil })
	eventually(t, "the replica to follow", func() bool {
		return strings.Contains(node.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	eventually(t, "the primary to know the replica", func() bool {
		return strings.Count(admin.ClusterNodes(t.Context()).Val(), "slave") == 1
	})
	servers := []*testserver.RedisServer{primary}
	b := newBackend(t, []redisbackend.Shard{{
		Name:     "a",
		Primary:  newClusterClient(t, servers, redis.ClusterOptions{}),
		Replicas: []redis.UniversalClient{newClusterClient(t, servers, redis.ClusterOptions{ReadOnly: true})},
	}}, &redisbackend.Options{ReplicaTimeout: 20 * time.Second})
	th, p := throttler.New(b, nil), policy("core", perHour(100))
	peek := func(onReplica bool) {
		t.Helper()
		before := commandStats(t, node)["get"].calls
		if d, err := th.Peek(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 1 {
			t.Errorf("peek: %v, error %v; want 1 used", d, err)
		}
		if asked := commandStats(t, node)["get"].calls > before; asked != onReplica {
			t.Errorf("the replica was asked: %v, want %v", asked, onReplica)
		}
	}
	if _, err := th.Take(t.Context(), p.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica to catch up", func() bool { return node.DBSize(t.Context()).Val() == 1 })
	peek(false)
	eventually(t, "the checks to find both nodes", func() bool {
		b.Check()
		all := b.Servers()
		return len(all) == 2 && all[0].Server == primary.Addr && all[0].Primary && all[1].Server == replica.Addr && !all[1].Cut
	})
	peek(true)
	replica.Pause()
	b.CheckHung()
	replica.Resume()
	peek(false)
}

// A replica whose primary does not answer serves peeks only until its value is too old.
func TestPeekFailsWithAReplicaAlone(t *testing.T) {
	r := newReplicated(t)
	r.primary.Pause()
	r.peeks(t, 10, true) // current until it is too old
	r.backend.Pass(redisbackend.MaxLag)
	for range 2 {
		d, err := sent(t, 50*time.Millisecond, func(ctx context.Context) (throttler.Decision, error) {
			return r.Peek(ctx, r.policy.Charge("alice"))
		})
		if !errors.Is(err, throttler.ErrUnavailable) {
			t.Errorf("peek: %v, error %v; want one that wraps ErrUnavailable", d, err)
		}
		eventually(t, "the replica to answer a check in time", func() bool {
			r.backend.CheckHung()
			return r.state(t).Err == nil
		})
		r.isCut(t, "its primary does not answer")
	}
	if all := r.backend.Servers(); all[0].Err == nil {
		t.Errorf("the primary: %+v; want an error", all[0])
	}
	r.primary.Resume()
	r.backend.Check()
	r.isCut(t, "")
	r.peeks(t, 10, true)
}

// A primary that has become a replica may be arbitrarily far behind.
func TestPeekFailsOnADemotedPrimary(t *testing.T) {
	r := newReplicated(t)
	host, port, _ := net.SplitHostPort(testserver.Redis(t).Addr)
	if err := r.client.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	r.replica.Stop()
	r.backend.Check()
	if d, err := r.Peek(t.Context(), r.policy.Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), "become a replica") {
		t.Errorf("peek: %v, error %v; want one that says why", d, err)
	}
	if err := r.client.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	r.backend.Check()
	if _, err := r.Peek(t.Context(), r.policy.Charge("alice")); err != nil {
		t.Errorf("a primary again: %v", err)
	}
}

// A user that may not run TIME and INFO is served, and the skew and the role are unknown.
func TestChecksThatAreDenied(t *testing.T) {
	r := newReplicated(t)
	login := func(addr string) redis.UniversalClient {
		if err := newClient(t, addr).Do(t.Context(), "acl", "setuser", "weir", "on", ">secret", "~*", "+@all", "-info", "-time").Err(); err != nil {
			t.Fatal(err)
		}
		o := patient(addr)
		o.Username, o.Password = "weir", "secret"
		return connect(t, o)
	}
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: login(r.primary.Addr), Replicas: []redis.UniversalClient{login(r.replica.Addr)}}}, nil)
	r.backend, r.Throttler = b, throttler.New(b, &throttler.Options{Clock: r.clock})
	b.Check()
	r.take(t, 1)
	r.peeks(t, 11, false)
	for _, s := range b.Servers() {
		if s.Err != nil || s.SkewKnown || s.Role != "" {
			t.Errorf("%+v; want a server that answers, and nothing else known of it", s)
		}
	}
	r.isCut(t, "does not report its role")
}

func TestChecksAreObservedFromTheFirstUseUntilClose(t *testing.T) {
	server := testserver.Redis(t)
	var seen events
	b, err := redisbackend.New([]redisbackend.Shard{
		{Name: "a", Primary: newClient(t, server.Addr)},
		{Name: "b", Primary: newClient(t, "127.0.0.1:1")}, // no server answers
	}, &redisbackend.Options{Observer: &seen})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	admin := newClient(t, server.Addr)
	if clients := admin.ClientList(t.Context()).Val(); strings.Count(clients, "\n") != 1 {
		t.Errorf("New has dialed: %s", clients)
	}
	b.Clock()
	eventually(t, "both servers to be checked", func() bool { return len(b.Servers()) == 2 })
	b.Close()
	b.Close()
	for _, e := range seen.checked {
		well := e.Shard == "a"
		if e.Backend != "redisbackend" || e.Server != "primary" || e.Cut || e.SkewKnown != well || (e.Err == nil) != well {
			t.Errorf("checked: %+v", e)
		}
		if e.SkewKnown && e.Skew.Abs() > time.Second {
			t.Errorf("skew %v to a server on this machine", e.Skew)
		}
	}
	if n := len(seen.checked); n < 2 {
		t.Errorf("%d checks were observed, want one of each server", n)
	}
}
