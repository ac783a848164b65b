package redisbackend_test

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/backendtest"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/driver"
)

func TestMain(m *testing.M) {
	net.DefaultResolver = noDNS
	redisbackend.AllShapes()
	code := m.Run()
	if err := leftover(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// leftover returns an error if goroutines have not ended after a minute: clients that dial in
// the background or follow Sentinels notice within a second that they were closed, and goleak
// waits only half a second.
func leftover(options ...goleak.Option) error {
	for deadline := time.Now().Add(time.Minute); ; {
		if err := goleak.Find(options...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func TestContractOneShard(t *testing.T) {
	backendtest.Run(t, opener(t, 1))
}

func TestSequentialContractThreeShards(t *testing.T) {
	backendtest.Run(t, opener(t, 3))
}

func TestSequentialHistoriesThreeShards(t *testing.T) {
	backendtest.Histories(t, opener(t, 3))
}

// opener returns a function that opens empty backends over n new servers.
func opener(t *testing.T, n int) func(*testing.T) driver.Backend {
	shards := make([]redisbackend.Shard, n)
	for i := range shards {
		shards[i] = redisbackend.Shard{
			Name:    string(rune('a' + i)),
			Primary: newClient(t, testserver.Redis(t).Addr),
		}
	}
	return openerOn(shards...)
}

// openerOn returns a function that opens empty backends over shards, each with a new prefix.
func openerOn(shards ...redisbackend.Shard) func(*testing.T) driver.Backend {
	var opened atomic.Int64
	return func(t *testing.T) driver.Backend {
		// A key outlives a slow test, during which the manual clock hardly moves.
		return newBackend(t, shards, &redisbackend.Options{Prefix: fmt.Sprintf("t%d:", opened.Add(1)), Margin: time.Hour})
	}
}

func newBackend(t testing.TB, shards []redisbackend.Shard, options *redisbackend.Options) *redisbackend.Backend {
	t.Helper()
	patient := redisbackend.Options{}
	if options != nil {
		patient = *options
	}
	if patient.Deadline == 0 {
		patient.Deadline = 20 * time.Second // like the clients' timeouts: see patient
	}
	b, err := redisbackend.New(shards, &patient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b.WithoutChecks()
}

// patient returns options whose timeouts a busy machine does not reach.
func patient(addrs ...string) *redis.UniversalOptions {
	const long = 20 * time.Second
	return &redis.UniversalOptions{Addrs: addrs, DialTimeout: long, ReadTimeout: long, WriteTimeout: long, PoolTimeout: long}
}

// connect returns a client that is closed with the test.
func connect(t testing.TB, o *redis.UniversalOptions) redis.UniversalClient {
	t.Helper()
	c, err := redisbackend.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newClient(t testing.TB, addr string) *redis.Client {
	return connect(t, patient(addr)).(*redis.Client)
}
