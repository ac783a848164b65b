package redisbackend_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// slowRelay returns the address of a relay to upstream that delays each answer.
func slowRelay(t *testing.T, upstream string, delay time.Duration) (addr string) {
	return testserver.Relay(t, upstream, func([]byte) bool {
		time.Sleep(delay)
		return false
	})
}

// protected starts a server that requires the password "secret".
func protected(t *testing.T) *testserver.RedisServer {
	server := testserver.Redis(t)
	if err := newClient(t, server.Addr).ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	return server
}

var loginPolicies = [2]*throttler.Policy{
	{Name: "a", Limits: []throttler.Limit{{Quota: 5, Window: time.Hour}}},
	{Name: "b", Limits: []throttler.Limit{{Quota: 5, Window: time.Hour}}},
}

// A decision without time to connect and log in leaves connections for the next decision.
func TestAFailureOpensConnections(t *testing.T) {
	server := protected(t)
	come := make(chan struct{})
	c := connect(t, &redis.UniversalOptions{
		Addrs: []string{server.Addr}, Password: "secret", DB: 2,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			select {
			case <-come:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	b, _ := newObserved(t, c, redisbackend.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.Take(ctx, loginPolicies[0].Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Fatalf("without a connection: %v, want ErrUnavailable", err)
	}
	close(come)
	eventually(t, "a connection that has logged in", func() bool { return c.PoolStats().IdleConns > 0 })
	admin := redis.NewClient(&redis.Options{Addr: server.Addr, Password: "secret"})
	defer admin.Close()
	if list := admin.ClientList(t.Context()).Val(); !strings.Contains(list, " db=2 ") {
		t.Errorf("before its first use: got the connections %s, want one with db=2", list)
	}
	if _, err := b.Take(t.Context(), loginPolicies[0].Charge("alice")); err != nil {
		t.Error(err)
	}
}

// If a server refuses the login, its skew is unknown, a peek is an error, not zeros, and the
// server's state has the reason.
func TestWrongPassword(t *testing.T) {
	server := protected(t)
	for name, c := range map[string]redis.UniversalClient{
		"recommended": connect(t, &redis.UniversalOptions{Addrs: []string{server.Addr}, Password: "other"}),
		"plain":       redis.NewClient(&redis.Options{Addr: server.Addr, Password: "other", MaxRetries: -1}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { _ = c.Close() })
			b, e := newObserved(t, c, redisbackend.Options{})
			b.backend.Check()
			charges := []throttler.Charge{loginPolicies[0].Charge("alice"), loginPolicies[1].Charge("alice")}
			for name, decide := range map[string]func(context.Context, ...throttler.Charge) (throttler.Decision, error){"peek": b.Peek, "take": b.Take} {
				if d, err := decide(t.Context(), charges...); !errors.Is(err, throttler.ErrUnavailable) {
					t.Errorf("%s: got %+v, error %v; want ErrUnavailable", name, d, err)
				}
			}
			for range 3 {
				_, errs := b.backend.TakeTogether(t.Context(), driver.NewRequest(1, charges[0]), driver.NewRequest(1, charges[1]))
				for _, err := range errs {
					if err == nil {
						t.Error("a take with others succeeded")
					}
				}
			}
			b.backend.Check()
			for _, s := range b.backend.Servers() {
				if s.SkewKnown || s.Err == nil || !strings.Contains(s.Err.Error(), "WRONGPASS") {
					t.Errorf("got %+v, want no skew, and WRONGPASS", s)
				}
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, checked := range e.checked {
				if checked.SkewKnown {
					t.Errorf("the observer got %+v, want no skew", checked)
				}
			}
		})
	}
}

// Servers gives the reason why a breaker is open, even if the server answered the last check.
func TestServersSayWhyABreakerIsOpen(t *testing.T) {
	server := testserver.Redis(t)
	b, _ := newObserved(t, quick(t, server.Addr), redisbackend.Options{})
	b.backend.Check()
	server.Pause()
	defer server.Resume()
	b.backend.Trip(errors.New("no answer"))
	if s := b.backend.Servers()[0]; !s.Open || s.Err == nil || s.Err.Error() != "no answer" {
		t.Errorf("got open %t, error %v; want true, no answer", s.Open, s.Err)
	}
}

// Load opens all connections that decisions need for a distant server.
func TestLoadOpensConnections(t *testing.T) {
	server := testserver.Redis(t)
	c := quick(t, slowRelay(t, server.Addr, 15*time.Millisecond))
	b, _ := newObserved(t, c, redisbackend.Options{})
	if err := b.backend.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := c.PoolStats().IdleConns; n < 8 {
		t.Errorf("%d connections are open, want 8", n)
	}
}

// Probes have no more time than decisions: the breaker of a server that answers too late for
// decisions stays open. The probes share a connection.
func TestSlowServerStaysOpen(t *testing.T) {
	const deadline = 50 * time.Millisecond
	server := testserver.Redis(t)
	addr := slowRelay(t, server.Addr, 3*deadline/2)
	var dials atomic.Int64
	// A pool of one: the connections that decisions need are opened in the background, not for
	// probes.
	c := connect(t, &redis.UniversalOptions{Addrs: []string{addr}, PoolSize: 1, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	b, e := newObserved(t, c, redisbackend.Options{})
	take := func() {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		_, _ = b.Take(ctx, loginPolicies[0].Charge("alice"))
	}
	for !b.backend.Open() {
		take()
	}
	admin := newClient(t, server.Addr)
	probed := func() int { return commandStats(t, admin)["evalsha"].calls + commandStats(t, admin)["eval"].calls }
	eventually(t, "the first probe", func() bool { return probed() >= 2 })
	before, probes := dials.Load(), probed()
	eventually(t, "five more", func() bool { take(); return probed() >= probes+10 })
	if n := dials.Load() - before; n > 2 {
		t.Errorf("%d connections were made, want none for each probe", n)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	opened := false
	for _, checked := range e.checked {
		if opened && !checked.Open {
			t.Fatal("the breaker closed")
		}
		opened = checked.Open
	}
}
