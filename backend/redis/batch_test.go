package redisbackend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/algorithm"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler"
)

// packedTake is a take of one unit of limits, as decide.lua reads it.
func packedTake(now int64, limits ...throttler.Limit) []byte {
	b := packedTakes(now, limits)
	if len(limits) == 1 && limits[0].Algorithm == throttler.FixedWindow {
		return redisbackend.AppendBounds(b, &limits[0], now, 1)
	}
	return b
}

// packedTakes is a take of a charge of one unit for each list of limits.
func packedTakes(now int64, charges ...[]throttler.Limit) []byte {
	b := algorithm.AppendUint([]byte{1}, 6, now)
	b = append(algorithm.AppendUint(b, 4, 5000), 0, byte(len(charges)))
	op := len(b) - 2
	for _, limits := range charges {
		b = append(algorithm.AppendUint(b, 7, 1), byte(len(limits)))
		for i := range limits {
			if limits[i].Algorithm == throttler.SlidingLog {
				b[op] = 2
			}
			b = algorithm.AppendLimit(b, &limits[i])
		}
	}
	return b
}

// notDecided is the reply to a decision that cannot be made: one number, 3.
const notDecided = "\x02\x00\x01\x00\x00\x00\x00\x00\x00\x00\x03"

// The script makes several decisions in a call: simple ones, others, and ones that
// cannot be made, which have replies of their own.
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
	digits := func(n int64) string { return fmt.Sprintf("\x00\x13260%012d%04d", reset-1735689600000, n) }
	drains := algorithm.AppendUint([]byte{0, 40, 5}, 6, 10_000)
	drains = algorithm.AppendUint(algorithm.AppendUint(drains, 6, now+1000), 7, 0)
	drains = algorithm.AppendUint(algorithm.AppendUint(drains, 7, 10), 6, now)
	drains = algorithm.AppendUint(drains, 7, 10)
	want := "\x01" + used(1) + "\x01" + used(1) + notDecided + "\x01" + digits(2) + notDecided +
		"\x01" + string(drains) + "\x01" + digits(3) + "\x00" + digits(3)
	keys := []string{"a", "b", "list", "a", "bytes", "c", "a", "a"}
	args := []any{
		packedTake(now, window), packedTake(now, window), packedTake(now, window), packedTake(now, window),
		packedTake(now, window), packedTake(now, bucket), packedTake(now, window), packedTake(now, window),
	}
	several := []any{ // the same: five, one and two are of the same bytes
		packedTake(now, window), packedTake(now, bucket), packedTake(now, window),
	}
	several[0].([]byte)[0], several[2].([]byte)[0] = 5, 2
	for _, args := range [][]any{args, several} {
		client.Del(t.Context(), "a", "b", "c")
		got, err := redis.NewScript(lua.Decide).Run(t.Context(), client, keys, args...).Text()
		if err != nil || got != want {
			t.Errorf("%d arguments: got  %x, %v\nwant %x", len(args), got, err, want)
		}
	}
	if client.Get(t.Context(), "bytes").Val() != "abc" || client.LLen(t.Context(), "list").Val() != 1 {
		t.Error("what is not ours was changed")
	}

	simple := packedTake(now, window)
	simple[0] = 4
	want = "\x01" + used(1) + digits(1)[2:] + digits(2)[2:] + "\x00" + digits(3)
	got, err := redis.NewScript(lua.Decide).Run(t.Context(), client, []string{"d", "d", "d", "d"}, simple).Text()
	if err != nil || got != want {
		t.Errorf("simple ones: got  %x, %v\nwant %x", got, err, want)
	}

	// One reply about two keys, after a simple one.
	two := packedTakes(now, []throttler.Limit{window}, []throttler.Limit{window})
	want = "\x01" + used(1) + notDecided
	got, err = redis.NewScript(lua.Decide).Run(t.Context(), client, []string{"e", "list", "list"}, packedTake(now, window), two).Text()
	if err != nil || got != want {
		t.Errorf("two charges: got  %x, %v\nwant %x", got, err, want)
	}
}

// BenchmarkServerTimeOfACall reads from the server what a decision takes in calls that
// make so many: about a lone fixed window, and about two policies of three mixed
// limits, without a sliding log and with one; and, for these, how many times a lone window's that is.
func BenchmarkServerTimeOfACall(b *testing.B) {
	client := newClient(b, testserver.Redis(b).Addr)
	script := redis.NewScript(lua.Decide)
	const units = 1 << 40
	lone := []throttler.Limit{{Quota: units, Window: time.Hour}}
	reads := []throttler.Limit{
		{Quota: units, Window: time.Hour},
		{Quota: units, Window: time.Minute, Algorithm: throttler.SlidingWindow},
		{Quota: units, Window: time.Second, Algorithm: throttler.TokenBucket},
	}
	writes := []throttler.Limit{
		{Quota: units, Window: 24 * time.Hour, Aligned: true},
		{Quota: units, Window: time.Hour, Algorithm: throttler.SlidingWindow},
		{Quota: units, Window: time.Minute, Algorithm: throttler.LeakyBucket},
	}
	logs := []throttler.Limit{{Quota: quota.MaxLogQuota, Window: time.Minute, Algorithm: throttler.SlidingLog}, writes[1], writes[2]}
	full := append([]throttler.Limit{{Quota: 1, Window: time.Hour}}, reads[1:]...)
	for _, n := range []int{1, 2, 4, 16} {
		cost := func(name string, charges ...[]throttler.Limit) float64 {
			var keys []string
			var args []any
			for i := range n {
				for j := range charges {
					keys = append(keys, fmt.Sprintf("%s:{%016d}/core%d", name, i, j))
				}
				args = append(args, packedTakes(t0.UnixMilli(), charges...))
			}
			return usecPerCall(b, client, func(int) {
				if err := script.EvalSha(b.Context(), client, keys, args...).Err(); err != nil {
					if err := script.Eval(b.Context(), client, keys, args...).Err(); err != nil {
						b.Fatal(err)
					}
				}
			}) / float64(n)
		}
		for _, bench := range []struct {
			name    string
			charges [][]throttler.Limit
		}{
			{"lone", [][]throttler.Limit{lone}},
			{"six", [][]throttler.Limit{reads, writes}},
			{"six-with-log", [][]throttler.Limit{reads, logs}},
			{"six-refused", [][]throttler.Limit{full, writes}},
		} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, n), func(b *testing.B) {
				var costs, ratios []float64
				for b.Loop() {
					least := cost("lone", lone)
					costs = append(costs, cost(bench.name, bench.charges...))
					ratios = append(ratios, costs[len(costs)-1]/least)
				}
				b.ReportMetric(median(costs), "µs/decision")
				b.ReportMetric(median(ratios), "ratio")
			})
		}
	}
}
