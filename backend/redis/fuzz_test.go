package redisbackend

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/throttler"
)

// hostile returns a backend on a server that answers each request with answer.
func hostile(t testing.TB, answer []byte) *Backend {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	var mu sync.Mutex // go-redis may still dial when the test has ended
	var servers sync.WaitGroup
	t.Cleanup(func() { // go-redis does not close all connections
		mu.Lock()
		end()
		mu.Unlock()
		servers.Wait()
	})
	c, err := NewClient(&redis.UniversalOptions{
		Addrs: []string{"hostile:0"},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			client, server := net.Pipe()
			context.AfterFunc(ctx, func() { _ = server.Close() })
			servers.Go(func() {
				defer server.Close()
				request := make([]byte, 64<<10)
				for {
					if _, err := server.Read(request); err != nil {
						return
					}
					if _, err := server.Write(answer); err != nil {
						return
					}
				}
			})
			return client, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	b, err := New([]Shard{{Name: "a", Primary: c}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// FuzzReplies checks that, whatever a server answers, a decision ends at its deadline, in
// bounded memory, without a panic.
func FuzzReplies(f *testing.F) {
	for _, answer := range []string{
		"*1000000000\r\n", "$500000000\r\n", "%4000000\r\n", "+OK\r\n", "-ERR no\r\n", "%0\r\n", "-NOSCRIPT no\r\n",
		strings.Repeat("*1\r\n", 2_000), strings.Repeat("|0\r\n", 2_000), ">2\r\n+message\r\n+x\r\n", "*-1\r\n", "$-1\r\n", "",
		"%1\r\n+proto\r\n:3\r\n", "_\r\n", "*260000\r\n" + strings.Repeat("_\r\n", 1000), "=3\r\ntxt\r\n", "*1\r\n*-7\r\n",
	} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		b := hostile(t, answer)
		policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour}}}
		th := throttler.New(b, nil)
		before := allocated()
		for name, decide := range map[string]func(context.Context, ...throttler.Charge) (throttler.Decision, error){"take": th.Take, "peek": th.Peek} {
			const deadline = 20 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			began := time.Now()
			_, err := decide(ctx, policy.Charge("alice"))
			cancel()
			if took := time.Since(began); took > deadline+2*time.Second { // a busy machine
				t.Errorf("a %s took %v, with a deadline of %v", name, took, deadline)
			}
			if err != nil && !errors.Is(err, throttler.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a %s: %v, want an error that wraps ErrUnavailable", name, err)
			}
		}
		if got := allocated() - before; got > 64<<20 {
			t.Errorf("%d bytes were allocated, want at most 64 MiB", got)
		}
	})
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
