package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// A movingSlot is the slot of one partition, which moves from one node of a Cluster to another.
type movingSlot struct {
	t        *testing.T
	th       *throttler.Throttler
	org      *throttler.Policy
	user     *throttler.Policy
	keys     []string // of acme, and of alice within acme
	slot     int64
	from, to *redis.Client
	ids      [2]string
}

func newMovingSlot(t *testing.T) *movingSlot {
	servers := testserver.Cluster(t, 2, 0).Nodes
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: newClusterClient(t, servers, redis.ClusterOptions{})}}, nil)
	m := &movingSlot{t: t, th: throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)}), org: policy("org", perHour(1<<30)), user: policy("user", perHour(1<<30), throttler.Limit{Quota: 1 << 30, Window: time.Hour, Algorithm: throttler.TokenBucket})}
	for _, c := range m.charges() {
		c.Partition = "acme"
		m.keys = append(m.keys, b.Locate(c).Key)
	}
	m.from, m.to = newClient(t, servers[0].Addr), newClient(t, servers[1].Addr)
	m.slot = m.from.ClusterKeySlot(t.Context(), m.keys[0]).Val()
	if m.slot >= 16384/2 {
		m.from, m.to = m.to, m.from
	}
	for i, c := range []*redis.Client{m.from, m.to} {
		m.ids[i] = m.do(c, "cluster", "myid")
	}
	return m
}

func (m *movingSlot) charges() []throttler.Charge {
	return []throttler.Charge{m.org.Charge("acme"), m.user.Charge("alice").Within("acme")}
}

func (m *movingSlot) do(c *redis.Client, args ...any) string {
	m.t.Helper()
	s, err := c.Do(context.Background(), args...).Text()
	if err != nil {
		m.t.Fatalf("%v: %v", args, err)
	}
	return s
}

// begin begins the move, and move moves a key.
func (m *movingSlot) begin() {
	m.do(m.to, "cluster", "setslot", m.slot, "importing", m.ids[0])
	m.do(m.from, "cluster", "setslot", m.slot, "migrating", m.ids[1])
}

func (m *movingSlot) move(key string) {
	host, port, _ := net.SplitHostPort(m.to.Options().Addr)
	m.do(m.from, "migrate", host, port, key, 0, 5000)
}

func (m *movingSlot) end() {
	m.do(m.to, "cluster", "setslot", m.slot, "node", m.ids[1])
	m.do(m.from, "cluster", "setslot", m.slot, "node", m.ids[1])
}

func (m *movingSlot) take(within time.Duration) error {
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	d, err := m.th.Take(ctx, m.charges()...)
	if err == nil && !d.Allowed {
		err = fmt.Errorf("refused: %v", d)
	}
	return err
}

// used checks the units used of both keys.
func (m *movingSlot) used(want int64) {
	m.t.Helper()
	d, err := m.th.Peek(m.t.Context(), m.charges()...)
	if err != nil {
		m.t.Fatal(err)
	}
	for i, l := range d.Limits() {
		if l.Used != want {
			m.t.Errorf("limit %d: %d used, want %d", i, l.Used, want)
		}
	}
}

// A Cluster does nothing, and answers TRYAGAIN, while the keys of a call are on two nodes.
func TestSlotThatMoves(t *testing.T) {
	t.Parallel() // it waits most of the time
	m := newMovingSlot(t)
	if err := m.take(time.Minute); err != nil {
		t.Fatal(err)
	}
	m.begin()
	if err := m.take(time.Minute); err != nil {
		t.Errorf("no key has moved: %v", err)
	}
	m.move(m.keys[0])
	err := m.take(500 * time.Millisecond)
	for errors.Is(err, driver.ErrOverloaded) { // a busy machine: the last try was under way
		err = m.take(500 * time.Millisecond)
	}
	if err == nil || driver.MayHaveCharged(err) {
		t.Errorf("keys are apart until the deadline: %v; want that nothing was charged", err)
	}
	const takes = 32
	var all sync.WaitGroup
	for range takes {
		all.Go(func() {
			if err := m.take(time.Minute); err != nil {
				t.Errorf("keys are apart for a while: %v", err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // some tries: a take that begins later waits less
	m.move(m.keys[1])
	all.Wait()
	if err := m.take(time.Minute); err != nil {
		t.Errorf("all keys have moved: %v", err)
	}
	m.end()
	if err := m.take(time.Minute); err != nil {
		t.Errorf("the slot has moved: %v", err)
	}
	m.used(4 + takes)
}

// A caller that leaves while keys are apart returns at once.
func TestCallerLeavesWhileASlotMoves(t *testing.T) {
	t.Parallel() // it waits most of the time
	m := newMovingSlot(t)
	if err := m.take(time.Minute); err != nil {
		t.Fatal(err)
	}
	m.begin()
	m.move(m.keys[0])
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := m.th.Take(ctx, m.charges()...); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left: %v", err)
	}
	m.move(m.keys[1])
	m.end()
	m.used(1)
}
