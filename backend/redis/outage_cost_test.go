package redisbackend_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/throttler"
)

var (
	outageTime    = flag.Duration("outage", 300*time.Millisecond, "how long the outages of TestOutage are")
	outageCallers = flag.String("outage-callers", "1,64", "how many goroutines decide in TestOutage, separated by commas")
)

// TestOutage prints what an outage costs the callers: see
// docs/operations.md. It fails if the server is not used again.
func TestOutage(t *testing.T) {
	for _, kind := range []string{"silent", "hung", "killed"} {
		for _, callers := range strings.Split(*outageCallers, ",") {
			n, err := strconv.Atoi(callers)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(kind+"/"+callers, func(t *testing.T) { measureOutage(t, kind, n) })
		}
	}
}

// measureOutage has callers decide before, in and after an outage: of a server that
// never answers, that is stopped, or that is killed and started again.
func measureOutage(t *testing.T, kind string, callers int) {
	server := testserver.Redis(t)
	addr := server.Addr
	if kind == "silent" {
		addr, _ = silent(t)
	}
	var dials, took atomic.Int64
	c := connect(t, &redis.UniversalOptions{Addrs: []string{addr}, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	p := policy("core", perHour(1<<40))

	var out atomic.Bool // of order
	var mu sync.Mutex
	var slow []time.Duration
	var answered atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for g := range callers {
		all.Go(func() {
			charge := p.Charge(fmt.Sprint("key", g))
			var own []time.Duration
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				slow = append(slow, own...)
			}()
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				began := time.Now()
				_, err := th.Take(ctx, charge)
				cancel()
				switch {
				case err == nil:
					answered.Add(1)
				case !errors.Is(err, throttler.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
				case out.Load():
					own = append(own, time.Since(began))
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	if kind != "silent" {
		eventually(t, "decisions", func() bool { return answered.Load() > int64(callers) })
	}
	before := dials.Load()
	out.Store(true)
	switch kind {
	case "hung":
		server.Pause()
	case "killed":
		server.Kill()
	}
	eventually(t, "the breaker to open", b.Open)
	opened := dials.Load()
	time.Sleep(*outageTime)
	rate := float64(dials.Load()-opened) / outageTime.Seconds()
	out.Store(false)
	if kind != "silent" {
		if kind == "hung" {
			server.Resume()
		} else if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		back, last := time.Now(), answered.Load()
		eventually(t, "a decision", func() bool { return answered.Load() > last })
		took.Store(int64(time.Since(back)))
	}
	close(stop)
	all.Wait()
	slices.Sort(slow)
	if len(slow) == 0 {
		t.Fatal("no decision failed")
	}
	at := func(share float64) time.Duration {
		return slow[min(int(share*float64(len(slow))), len(slow)-1)].Round(100 * time.Nanosecond)
	}
	t.Logf("%s, %d callers: %d decisions failed: p50 %v, p99 %v, max %v; %d dials until the breaker opened, then %.0f a second; used again after %v",
		kind, callers, len(slow), at(.5), at(.99), at(1), opened-before, rate, time.Duration(took.Load()).Round(time.Millisecond))
}
