package redisbackend_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// Three processes of five workers share 100 starts a second, with one call to the server for
// each, and no two starts closer than 10 ms.
func TestWorkersWaitByOneCallForEachStart(t *testing.T) {
	for _, algorithm := range []quota.Algorithm{throttler.LeakyBucket, throttler.TokenBucket} {
		t.Run(algorithm.String(), func(t *testing.T) {
			const processes, workers, each = 3, 5, 6
			server := testserver.Redis(t)
			policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 100, Window: time.Second, Algorithm: algorithm, Burst: 1}}}
			var mu sync.Mutex
			var starts []time.Time
			var running sync.WaitGroup
			for range processes {
				shard := redisbackend.Shard{Name: "a", Primary: newClient(t, server.Addr)}
				process := throttler.New(newBackend(t, []redisbackend.Shard{shard}, nil), nil)
				for range workers {
					running.Go(func() {
						for range each {
							d, err := process.Wait(t.Context(), policy.Charge("key"))
							if err != nil || time.Now().Before(d.StartAt()) {
								t.Errorf("%v, %v; starts at %v", d, err, d.StartAt())
							}
							mu.Lock()
							starts = append(starts, d.StartAt())
							mu.Unlock()
						}
					})
				}
			}
			running.Wait()
			calls := commandStats(t, newClient(t, server.Addr))["evalsha"].calls
			if calls > len(starts)+processes { // each may first have to send the script
				t.Errorf("%d calls for %d starts", calls, len(starts))
			}
			slices.SortFunc(starts, time.Time.Compare)
			for i := range starts[1:] {
				if gap := starts[i+1].Sub(starts[i]); gap < 9*time.Millisecond { // of a token bucket, rounded up
					t.Errorf("starts %d and %d are %v apart", i, i+1, gap)
				}
			}
		})
	}
}
