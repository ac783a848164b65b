package redisbackend_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/pressure"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

var (
	failoverClients = flag.Int("failover-clients", 8, "goroutines of the Failover tests")
	failoverPause   = flag.Duration("failover-pause", 20*time.Millisecond, "time between two decisions of one of them")
)

// topology is a shard with a primary that can be lost.
type topology struct {
	shard   redisbackend.Shard
	primary *testserver.RedisServer
	replica *testserver.RedisServer // replaces the primary
	planned func() error            // makes the replica the primary
}

func sentinelTopology(t *testing.T) topology {
	primary := testserver.Redis(t)
	replica := testserver.RedisReplica(t, primary)
	s := testserver.Sentinel(t, "a", primary, 1, time.Second)
	c := connect(t, &redis.UniversalOptions{Addrs: s.Addrs, MasterName: s.Name})
	return topology{redisbackend.Shard{Name: "a", Primary: c}, primary, replica, s.Failover}
}

func clusterTopology(t *testing.T) topology {
	cluster := testserver.Cluster(t, 3, 1, "--cluster-node-timeout", "1000")
	c := connect(t, &redis.UniversalOptions{Addrs: cluster.Addrs})
	return topology{redisbackend.Shard{Name: "a", Primary: c}, cluster.Nodes[0], cluster.Nodes[3], func() error { return cluster.Failover(cluster.Nodes[3]) }}
}

// Under load the primary is killed, or replaced as planned. Then decisions are made again, and
// no charge is made twice. A planned failover of a cluster loses no charge.
func TestFailover(t *testing.T) {
	for name, start := range map[string]func(*testing.T) topology{"Sentinel": sentinelTopology, "Cluster": clusterTopology} {
		for _, planned := range []bool{false, true} {
			how := "killed"
			if planned {
				how = "planned"
			}
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel() // it waits most of the time
				s := start(t)
				b := newBackend(t, []redisbackend.Shard{s.shard}, nil)
				l := newFailoverLoad(throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)}))
				l.run(t.Context())
				defer l.stop()

				l.awaitAllowed(t, 100)
				began := time.Now()
				if planned {
					if err := s.planned(); err != nil {
						t.Fatal(err)
					}
				} else {
					s.primary.Kill()
				}
				promoted, err := s.replica.AwaitPrimary()
				if err != nil {
					t.Fatal(err)
				}
				waited := pressure.Waited()
				// Wait until no client has failed for longer than clients keep connections to
				// an old primary.
				l.awaitQuiet(t, promoted, 3*time.Second)
				waited = pressure.Waited() - waited
				l.stop()

				lost, twice := l.compare(t)
				first, last := l.failures()
				report := fmt.Sprintf("promoted after %v; %d decisions allowed", promoted.Sub(began).Round(time.Millisecond), l.allowed.Load())
				if failed := l.failed.Load(); failed == 0 {
					report += ", none failed"
				} else {
					report += fmt.Sprintf(", %d failed, in %v, until %v after the promotion", failed,
						last.Sub(first).Round(time.Millisecond), last.Sub(promoted).Round(time.Millisecond))
				}
				t.Logf("%s; %d allowed and not counted", report, lost)
				if twice > 0 {
					t.Errorf("%d charges were made twice", twice)
				}
				if last.After(promoted.Add(10*time.Second + waited)) { // go-redis by default: a minute
					t.Errorf("decisions failed until %v after the promotion, on a machine that was busy for %v of it", last.Sub(promoted), waited)
				}
				if name == "Cluster" && planned && lost > 0 { // the old primary waits for the new one
					t.Errorf("%d of %d charges were lost", lost, l.allowed.Load())
				}
			})
		}
	}
}

// A failoverLoad takes units from its own keys, and records the outcomes.
type failoverLoad struct {
	throttler *throttler.Throttler
	policy    *throttler.Policy
	cancel    context.CancelFunc
	clients   sync.WaitGroup

	allowed, failed atomic.Int64
	mu              sync.Mutex
	answered        map[string]int64
	unknown         map[string]int64
	first, last     time.Time // failures
}

func newFailoverLoad(th *throttler.Throttler) *failoverLoad {
	return &failoverLoad{
		throttler: th, policy: policy("core", perHour(1<<40)),
		answered: make(map[string]int64), unknown: make(map[string]int64),
	}
}

func (l *failoverLoad) run(ctx context.Context) {
	ctx, l.cancel = context.WithCancel(ctx)
	for g := range *failoverClients {
		l.clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				l.take(fmt.Sprintf("client%d-%d", g, i%12)) // on all nodes
				time.Sleep(*failoverPause)
			}
		})
	}
}

func (l *failoverLoad) take(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	d, err := l.throttler.Take(ctx, l.policy.Charge(key))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && d.Allowed {
		l.answered[key]++
		l.allowed.Add(1)
		return
	}
	l.failed.Add(1)
	l.last = time.Now()
	if l.first.IsZero() {
		l.first = l.last
	}
	if errors.Is(err, throttler.ErrUnavailable) {
		l.unknown[key]++
	}
}

func (l *failoverLoad) stop() {
	l.cancel()
	l.clients.Wait()
}

func (l *failoverLoad) failures() (first, last time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.last
}

func (l *failoverLoad) awaitAllowed(t *testing.T, n int64) {
	t.Helper()
	n += l.allowed.Load()
	eventually(t, "decisions", func() bool { return l.allowed.Load() >= n })
}

// awaitQuiet waits until no decision has failed for the time quiet.
func (l *failoverLoad) awaitQuiet(t *testing.T, since time.Time, quiet time.Duration) {
	t.Helper()
	for deadline := since.Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, last := l.failures()
		if last.Before(since) {
			last = since
		}
		if time.Since(last) > quiet {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("decisions still fail two minutes after the promotion")
		}
	}
}

// compare returns how many allowed takes the server does not count, and how many it counts
// twice.
func (l *failoverLoad) compare(t *testing.T) (lost, twice int64) {
	t.Helper()
	for key, answered := range l.answered {
		var d throttler.Decision
		// On a busy machine, the breaker may have opened since the load stopped.
		eventually(t, "the count of "+key, func() (read bool) {
			var err error
			d, err = l.throttler.Peek(t.Context(), l.policy.Charge(key))
			return err == nil
		})
		lost += max(0, answered-d.Limit(0).Used)
		twice += max(0, d.Limit(0).Used-answered-l.unknown[key])
	}
	return lost, twice
}
