package leased_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// After a hang, a server executes the takes that have timed out. The units of their leases are
// not lost: of an hour's quota, only the units of requests without an answer are missing.
func TestRealHangs(t *testing.T) {
	for _, processes := range []int{1, 4} {
		t.Run(fmt.Sprint(processes, " processes"), func(t *testing.T) {
			server := testserver.Redis(t)
			c := clock.NewManual(t0)
			var backends []*leased.Backend
			var throttlers []*throttler.Throttler
			for range processes {
				client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = client.Close() })
				store, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, &redisbackend.Options{Deadline: 50 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(store.Close)
				b := open(t, store, &leased.Options{Clock: c})
				backends = append(backends, b)
				throttlers = append(throttlers, throttler.New(b, &throttler.Options{Clock: c}))
			}
			const quota = 1000
			hour := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: quota, Window: time.Hour}}}
			admitted, unknown := 0, 0
			give := time.Now().Add(time.Minute)
			refused := make([]int, processes) // since the last admitted request
			for i, hangs := 0, 0; slices.Min(refused) < 100; i++ {
				hanging := hangs < 3 && admitted >= 150*(hangs+1)
				if hanging {
					server.Pause()
				}
				for failed := 0; hanging && failed < 2*processes; i++ { // two takes each, once their units are spent
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					d, err := throttlers[i%processes].Take(ctx, hour.Charge("k"))
					cancel()
					switch {
					case err == nil && d.Allowed:
						admitted++
					case driver.MayHaveCharged(err):
						unknown++
						failed++
					case err != nil:
						failed++
					}
					c.Advance(time.Millisecond)
				}
				if hanging {
					server.Resume()
					hangs++
				}
				d, err := throttlers[i%processes].Take(t.Context(), hour.Charge("k"))
				switch {
				case errors.Is(err, throttler.ErrUnavailable) && time.Now().Before(give): // until the breaker closes
					if driver.MayHaveCharged(err) {
						unknown++
					}
					continue
				case err != nil:
					t.Fatal(err)
				case d.Allowed:
					admitted++
					clear(refused)
				default:
					refused[i%processes]++
				}
				c.Advance(2 * time.Millisecond)
			}
			for i, b := range backends {
				t.Logf("process %d: %+v", i, b.Stats())
			}
			t.Logf("%d of %d were admitted, %d had no answer", admitted, quota, unknown)
			if gone := quota - admitted - unknown; gone > quota*3/100 {
				t.Errorf("%d units are gone, and %d more were asked for without an answer; want at most 30", gone, unknown)
			}
			if admitted > quota {
				t.Errorf("%d were admitted of %d", admitted, quota)
			}
		})
	}
}
