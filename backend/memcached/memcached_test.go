package memcachedbackend_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/backendtest"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBackendOneServer(t *testing.T)              { backendtest.Run(t, opener(t, 1)) }
func TestSequentialBackendThreeServers(t *testing.T) { backendtest.Run(t, opener(t, 3)) }

// Partitions with several counts spill them all the time.
func TestSequentialBackendThatSpills(t *testing.T)  { backendtest.Run(t, spilling(opener(t, 1))) }
func TestSequentialHistoriesThatSpill(t *testing.T) { backendtest.Histories(t, either(t)) }

func TestSequentialHistoriesThreeServers(t *testing.T) { backendtest.Histories(t, opener(t, 3)) }

func BenchmarkBackend(b *testing.B) {
	open := opener(b, 1)
	backendtest.Bench(b, func(b *testing.B) driver.Backend { return open(nil) })
}

// opener returns a function that makes empty backends, each with its own prefix, on the same n
// new servers.
func opener(t testing.TB, n int) func(*testing.T) driver.Backend {
	servers := make([]memcachedbackend.Server, n)
	for i := range servers {
		servers[i] = memcachedbackend.Server{Name: string(rune('a' + i)), Client: newClient(t, testserver.Memcached(t).Addr)}
	}
	opened := 0
	return func(*testing.T) driver.Backend {
		opened++
		// An item outlives a slow test, during which the manual clock hardly moves.
		return newBackend(t, servers, &memcachedbackend.Options{Prefix: "t" + strconv.Itoa(opened) + ":", Margin: time.Hour})
	}
}

func spilling(open func(*testing.T) driver.Backend) func(*testing.T) driver.Backend {
	return func(t *testing.T) driver.Backend {
		b := open(t)
		b.(*memcachedbackend.Backend).SpillAt(1)
		return b
	}
}

// either returns a function that makes two backends over the same empty counts, as in two
// processes, and a backend that sends each call to one of them at random. Each spills while
// the other decides.
func either(t *testing.T) func(*testing.T) driver.Backend {
	addr := testserver.Memcached(t).Addr
	clients := []*memcachedbackend.Client{newClient(t, addr), newClient(t, addr)}
	opened := 0
	return func(t *testing.T) driver.Backend {
		opened++
		e := eitherOf{random: testseed.Locked(t, 0)}
		for i, client := range clients {
			e.backends[i] = newBackend(t, []memcachedbackend.Server{{Name: "a", Client: client}}, &memcachedbackend.Options{Prefix: "t" + strconv.Itoa(opened) + ":", Margin: time.Hour})
			e.backends[i].SpillAt(1 + 200*i)
		}
		return e
	}
}

type eitherOf struct {
	backends [2]*memcachedbackend.Backend
	random   *rand.Rand
}

func (e eitherOf) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return e.backends[e.random.IntN(2)].Take(ctx, r)
}

func (e eitherOf) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return e.backends[e.random.IntN(2)].Peek(ctx, r)
}

func (e eitherOf) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	return e.backends[e.random.IntN(2)].Settle(ctx, s)
}

func (e eitherOf) Reset(ctx context.Context, r driver.Request) error {
	return e.backends[e.random.IntN(2)].Reset(ctx, r)
}

func newClient(t testing.TB, addr string) *memcachedbackend.Client {
	c := memcachedbackend.NewClient(addr)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newBackend(t testing.TB, servers []memcachedbackend.Server, options *memcachedbackend.Options) *memcachedbackend.Backend {
	t.Helper()
	var o memcachedbackend.Options
	if options != nil {
		o = *options
	}
	if o.Deadline == 0 {
		o.Deadline = 20 * time.Second // a busy machine isn't a server that hangs
	}
	b, err := memcachedbackend.New(servers, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	c := memcachedbackend.NewClient("127.0.0.1:1")
	good := []memcachedbackend.Server{{Name: "a", Client: c}}
	for _, test := range []struct {
		servers []memcachedbackend.Server
		options memcachedbackend.Options
		want    string
	}{
		{nil, memcachedbackend.Options{}, "memcachedbackend: servers is empty; it must have at least one"},
		{[]memcachedbackend.Server{{Client: c}}, memcachedbackend.Options{}, "memcachedbackend: servers[0].Name is empty; it must be set, for it decides which keys live there"},
		{[]memcachedbackend.Server{{Name: "a"}}, memcachedbackend.Options{}, `memcachedbackend: servers[0].Client is nil; it must be a client of "a"`},
		{append(good, good...), memcachedbackend.Options{}, `memcachedbackend: servers[1].Name is "a", as servers[0].Name is; names must differ`},
		{good, memcachedbackend.Options{Prefix: "a b"}, `memcachedbackend: Prefix is "a b"; it must be at most 200 printable ASCII characters without spaces`},
		{good, memcachedbackend.Options{Prefix: "é"}, `memcachedbackend: Prefix is "é"; it must be at most 200 printable ASCII characters without spaces`},
		{good, memcachedbackend.Options{Prefix: strings.Repeat("p", 201)}, "memcachedbackend: Prefix is \"ppp"},
		{good, memcachedbackend.Options{Margin: -time.Second}, "memcachedbackend: Margin is -1s; it must be at least 1ms, or 0 for 10s"},
		{good, memcachedbackend.Options{Deadline: -1}, "memcachedbackend: Deadline is -1ns; it must be at least 1ms, or 0 for 1s"},
		{good, memcachedbackend.Options{MaxConnections: -1}, "memcachedbackend: MaxConnections is -1; it must be positive, or 0 for 64"},
		{good, memcachedbackend.Options{MaxItemBytes: 10}, "memcachedbackend: MaxItemBytes is 10; it must be at least 1024, or 0 for 1 MiB"},
	} {
		_, err := memcachedbackend.New(test.servers, &test.options)
		if !errors.Is(err, throttler.ErrInvalid) || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}
