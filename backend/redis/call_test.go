package redisbackend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// packed returns the script and the argument of a take of one unit for each charge, with a
// charge for each list of limits.
func packed(t testing.TB, now int64, charges ...[]throttler.Limit) (script string, argument []byte) {
	var all []throttler.Charge
	for i, limits := range charges {
		all = append(all, throttler.Charge{Policy: policy(fmt.Sprint("p", i), limits...), Key: "k", Partition: "k", Cost: 1})
	}
	b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: newClient(t, "127.0.0.1:0")}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	return b.Call(driver.NewRequest(now, all...), nil)
}

const undecided = "\x02"

// A script makes several decisions in a call. It leaves a decision that it can't make
// undecided, and changes nothing for it.
func TestSeveralDecisionsInACall(t *testing.T) {
	client := newClient(t, testserver.Redis(t).Addr)
	now := t0.UnixMilli()
	client.RPush(t.Context(), "list", "a")
	client.Set(t.Context(), "bytes", "abc", time.Hour)
	digits := func(n int64) string {
		return fmt.Sprintf("260%012d%04d", now+time.Hour.Milliseconds()-1735689600000, n)
	}
	replied := func(n int64) string { return "\x00\x13" + digits(n) }
	run := func(script string, keys []string, args ...any) string {
		t.Helper()
		got, err := redis.NewScript(script).Run(t.Context(), client, keys, args...).Text()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	script, window := packed(t, now, []throttler.Limit{perHour(3)})
	want := "\x01" + replied(1) + "\x01" + replied(1) + undecided + digits(1) + undecided + digits(2) + "\x00" + replied(3)
	keys := []string{"a", "b", "list", "a", "bytes", "a", "a"}
	three := append([]byte{3}, window[1:]...)
	for _, args := range [][]any{{window, window, window, window, window, window, window}, {three, window, three}} {
		client.Del(t.Context(), "a", "b")
		if got := run(script, keys, args...); got != want {
			t.Errorf("%d arguments: got  %q\nwant %q", len(args), got, want)
		}
	}
	bucket := throttler.Limit{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.TokenBucket}
	drains := algorithm.AppendUint([]byte{0, 40, 5}, 6, 10_000)
	drains = algorithm.AppendUint(algorithm.AppendUint(drains, 6, now+1000), 7, 0)
	drains = algorithm.AppendUint(algorithm.AppendUint(drains, 7, 10), 6, now)
	drains = algorithm.AppendUint(drains, 7, 10)
	script, argument := packed(t, now, []throttler.Limit{bucket})
	if got, want := run(script, []string{"list", "c", "a"}, argument, argument, argument), undecided+"\x01"+string(drains)+undecided; got != want {
		t.Errorf("a bucket: got  %q\nwant %q", got, want)
	}
	script, argument = packed(t, now, []throttler.Limit{perHour(3)}, []throttler.Limit{bucket})
	if got := run(script, []string{"d", "list"}, argument); got != undecided || client.Exists(t.Context(), "d").Val() != 0 {
		t.Errorf("two charges, one of a key that holds a list: got %q, and something was charged", got)
	}
	row := func(kind byte, n int64) string {
		window := algorithm.AppendUint([]byte{0, 20, kind}, 6, time.Hour.Milliseconds())
		return string(algorithm.AppendUint(algorithm.AppendUint(window, 6, now+time.Hour.Milliseconds()), 7, n))
	}
	script, argument = packed(t, now, []throttler.Limit{perHour(4)}, []throttler.Limit{perHour(1)})
	client.Set(t.Context(), "minute", fmt.Sprintf("160%012d%04d", now+time.Minute.Milliseconds()-1735689600000, 1), time.Hour)
	if got, want := run(script, []string{"a", "e", "a", "e", "minute", "f"}, argument, argument, argument), "\x01"+row(1, 4)+row(1, 1)+"\x00"+row(1, 4)+row(1, 1)+undecided; got != want {
		t.Errorf("digits in company: got  %q\nwant %q", got, want)
	}
	if got, want := run(script, []string{"b", "e"}, argument), "\x00"+replied(1)+row(1, 1); got != want {
		t.Errorf("digits that the company refuses: got  %q\nwant %q", got, want)
	}
	aligned := perHour(4)
	aligned.Aligned = true
	script, argument = packed(t, now, []throttler.Limit{aligned}, []throttler.Limit{perHour(1)})
	client.Set(t.Context(), "aligned", "6"+digits(1)[1:], time.Hour)
	if got, want := run(script, []string{"aligned", "g", "b", "h"}, argument, argument), "\x01"+row(2, 2)+row(1, 1)+undecided; got != want {
		t.Errorf("digits of an aligned window in company: got  %q\nwant %q", got, want)
	}
	if client.TTL(t.Context(), "a").Val() <= 0 {
		t.Error("a count that was digits does not end any more")
	}
	if client.Get(t.Context(), "bytes").Val() != "abc" || client.LLen(t.Context(), "list").Val() != 1 {
		t.Error("what is not ours was changed")
	}
}

// BenchmarkServerTimeOfACall reads the time of a decision from the server, in calls of n
// decisions: about one fixed window, and about two policies of three mixed limits, without a
// sliding log, with one, and refused. The ratio is to the time of one fixed window.
func BenchmarkServerTimeOfACall(b *testing.B) {
	client := newClient(b, testserver.Redis(b).Addr)
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
			text, argument := packed(b, t0.UnixMilli(), charges...)
			script := redis.NewScript(text)
			for i := range n {
				for j := range charges {
					keys = append(keys, fmt.Sprintf("%s:{%016d}/core%d", name, i, j))
				}
				args = append(args, argument)
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

// An empty string is not a state, even next to other states: the charges that a script makes
// before it reads one are made once.
func TestEmptyStringBesideACount(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	log := throttler.Limit{Quota: 10, Window: time.Hour, Algorithm: throttler.SlidingLog}
	charges := []throttler.Charge{policy("window", perHour(10)).Charge("alice"), policy("log", log).Charge("alice")}
	for i := range charges {
		charges[i].Partition = "alice"
	}
	key := b.backend.Locate(charges[1]).Key
	b.client.Set(t.Context(), key, "", 0)
	d, err := b.Take(t.Context(), charges...)
	if err != nil || d.Limit(0).Used != 1 || d.Limit(1).Used != 1 {
		t.Errorf("%+v, %v; want one used of each", d, err)
	}
	if ttl := b.client.PTTL(t.Context(), key).Val(); ttl <= 0 {
		t.Errorf("the log lives for %v", ttl)
	}
}
