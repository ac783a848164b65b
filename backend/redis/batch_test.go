package redisbackend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler"
)

// packedTake is a take of one unit of limits, as decide.lua reads it.
func packedTake(now int64, limits ...throttler.Limit) []byte {
	b := algorithm.AppendUint(nil, 6, now)
	b = append(algorithm.AppendUint(b, 4, 5000), 0, 1)
	b = append(algorithm.AppendUint(b, 7, 1), byte(len(limits)))
	for i := range limits {
		b = algorithm.AppendLimit(b, &limits[i])
	}
	return b
}

// notDecided is the reply to a decision that cannot be made: one number, 3.
const notDecided = "\x02\x00\x01\x00\x00\x00\x00\x00\x00\x00\x03"

// The script makes several decisions in a call: those that are simple, those that
// are not, and, as their own replies, those that cannot be made.
func TestSeveralDecisionsInACall(t *testing.T) {
	client := newClient(t, testserver.Redis(t).Addr)
	now := t0.UnixMilli()
	reset := now + time.Hour.Milliseconds()
	client.RPush(t.Context(), "list", "a")
	client.Set(t.Context(), "bytes", "abc", time.Hour)
	bucket := throttler.Limit{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.TokenBucket}
	window := perHour(3)
	used := func(n int64) string {
		b := algorithm.AppendUint([]byte{0, 12}, 4, 1<<28|time.Hour.Milliseconds())
		return string(algorithm.AppendUint(algorithm.AppendUint(b, 6, reset), 2, n))
	}
	drains := algorithm.AppendUint([]byte{0, 33, 5}, 6, 10_000)
	drains = algorithm.AppendUint(algorithm.AppendUint(drains, 6, now+1000), 7, 0)
	drains = algorithm.AppendUint(algorithm.AppendUint(drains, 7, 10), 6, now)
	want := "\x01" + used(1) + "\x01" + used(1) + notDecided + "\x01" + used(2) + notDecided +
		"\x01" + string(drains) + "\x01" + used(3) + "\x00" + used(3)
	keys := []string{"a", "b", "list", "a", "bytes", "c", "a", "a"}
	args := []any{
		packedTake(now, window), packedTake(now, window), packedTake(now, window), packedTake(now, window),
		packedTake(now, window), packedTake(now, bucket), packedTake(now, window), packedTake(now, window),
	}
	got, err := redis.NewScript(lua.Decide).Run(t.Context(), client, keys, args...).Text()
	if err != nil || got != want {
		t.Errorf("got  %x, %v\nwant %x", got, err, want)
	}
	if client.Get(t.Context(), "bytes").Val() != "abc" || client.LLen(t.Context(), "list").Val() != 1 {
		t.Error("what is not ours was changed")
	}
}

// BenchmarkServerTimeOfACall reads from the server what a call takes that makes so
// many decisions about lone fixed windows.
func BenchmarkServerTimeOfACall(b *testing.B) {
	client := newClient(b, testserver.Redis(b).Addr)
	script := redis.NewScript(lua.Decide)
	for _, n := range []int{1, 2, 4, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			keys, args := make([]string, n), make([]any, n)
			for i := range keys {
				keys[i] = fmt.Sprintf("weir:{%016d}/core", i)
				args[i] = packedTake(t0.UnixMilli(), throttler.Limit{Quota: 1 << 50, Window: time.Hour})
			}
			var costs []float64
			for b.Loop() {
				costs = append(costs, usecPerCall(b, client, func(int) {
					if err := script.EvalSha(b.Context(), client, keys, args...).Err(); err != nil {
						if err := script.Eval(b.Context(), client, keys, args...).Err(); err != nil {
							b.Fatal(err)
						}
					}
				}))
			}
			b.ReportMetric(median(costs), "µs/call")
			b.ReportMetric(median(costs)/float64(n), "µs/decision")
		})
	}
}
