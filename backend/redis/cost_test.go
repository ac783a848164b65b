package redisbackend_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// minimal is the simplest script of a fixed window with a stored reset time: a hash of two
// fields, as most would write it by hand.
const minimal = `
local stored = redis.call('HMGET', KEYS[1], 'used', 'reset_at')
local now, quota, cost, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local used, reset_at = tonumber(stored[1]), tonumber(stored[2])
if not reset_at or reset_at <= now then
  reset_at = now + window
  redis.call('HSET', KEYS[1], 'used', cost, 'reset_at', reset_at)
  redis.call('PEXPIRE', KEYS[1], window + 1000)
  return {1, cost, reset_at}
end
if used + cost > quota then return {0, used, reset_at} end
redis.call('HINCRBY', KEYS[1], 'used', cost)
return {1, used + cost, reset_at}
`

// minimalPacked is the same in a packed string, the cheapest known.
const minimalPacked = `
local stored = redis.call('GET', KEYS[1])
local now, quota, cost, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if stored then
  local used, reset_at = struct.unpack('>I7I6', stored)
  if reset_at > now then
    if used + cost > quota then return {0, used, reset_at} end
    redis.call('SET', KEYS[1], struct.pack('>I7I6', used + cost, reset_at), 'KEEPTTL')
    return {1, used + cost, reset_at}
  end
end
local reset_at = now + window
redis.call('SET', KEYS[1], struct.pack('>I7I6', cost, reset_at), 'PX', window + 1000)
return {1, cost, reset_at}
`

// BenchmarkScriptCost reads the time of script calls from the server, for weir's script of one
// fixed window and for a hand-written minimal one. It reports the median ratio of neighbouring
// runs, so that a slow moment of the machine affects both. The ratio must not exceed 1.25.
func BenchmarkScriptCost(b *testing.B) {
	server := testserver.Redis(b)
	c := newClient(b, server.Addr)
	for _, m := range []struct{ name, source string }{{"hash", minimal}, {"packed", minimalPacked}} {
		script := redis.NewScript(m.source)
		if err := script.Load(b.Context(), c).Err(); err != nil {
			b.Fatal(err)
		}
		for _, limit := range []struct {
			name  string
			quota int64
		}{{"allowed", 1 << 40}, {"refused", 1}} {
			b.Run("minimal="+m.name+"/"+limit.name, func(b *testing.B) {
				var ratios, ours, theirs []float64
				for b.Loop() {
					weir := weirCost(b, c, limit.quota)
					least := scriptCost(b, c, script, m.name, limit.quota)
					ratios, ours, theirs = append(ratios, weir/least), append(ours, weir), append(theirs, least)
				}
				b.ReportMetric(median(ours), "weir-µs/call")
				b.ReportMetric(median(theirs), "minimal-µs/call")
				b.ReportMetric(median(ratios), "ratio")
			})
		}
	}
}

// costs returns the numbers of keys and calls that a cost is averaged over. With -short, they
// only show that the benchmark runs.
func costs() (keys, calls int) {
	if testing.Short() {
		return 5, 20
	}
	return 500, 2000
}

func weirCost(t testing.TB, c *redis.Client, quota int64) float64 {
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Hour}}}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.UnixMilli(1_900_000_000_000))})
	keys, _ := costs()
	return usecPerCall(t, c, func(i int) {
		if _, err := th.Take(context.Background(), p.Charge("key"+strconv.Itoa(i%keys))); err != nil {
			t.Fatal(err)
		}
	})
}

func scriptCost(t testing.TB, c *redis.Client, script *redis.Script, name string, quota int64) float64 {
	keys, _ := costs()
	return usecPerCall(t, c, func(i int) {
		key := fmt.Sprintf("%s:{%016d}/core", name, i%keys)
		if err := script.EvalSha(context.Background(), c, []string{key}, int64(1_900_000_000_000), quota, 1, 3_600_000).Err(); err != nil {
			t.Fatal(err)
		}
	})
}

func usecPerCall(t testing.TB, c *redis.Client, call func(i int)) float64 {
	t.Helper()
	keys, calls := costs()
	for i := range keys { // windows open, script known
		call(i)
	}
	if err := c.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for i := range calls {
		call(i)
	}
	stats := commandStats(t, c)
	if stats["evalsha"].calls != calls {
		t.Fatalf("%d EVALSHA for %d decisions", stats["evalsha"].calls, calls)
	}
	return stats["evalsha"].usecPerCall
}

type commandStat struct {
	calls       int
	usecPerCall float64
}

// commandStats returns INFO commandstats.
func commandStats(t testing.TB, c *redis.Client) map[string]commandStat {
	t.Helper()
	info, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	stats := make(map[string]commandStat)
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+),usec=\d+,usec_per_call=([\d.]+)`).FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.Atoi(m[2])
		usec, _ := strconv.ParseFloat(m[3], 64)
		stats[m[1]] = commandStat{calls, usec}
	}
	return stats
}

// TestSequentialBytesPerClient reads the memory of a client with a key of 20 bytes from the
// server. The hash tables of Redis, 16 to 32 bytes a key, are excluded: they have grown before
// the measurement begins.
func TestSequentialBytesPerClient(t *testing.T) {
	t.Parallel()                    // it waits most of the time
	const grown, clients = 530, 450 // tables of 1024 slots hold both
	tests := []struct {
		name  string
		limit throttler.Limit
		takes int
		bound int
	}{
		{"one fixed window", throttler.Limit{Quota: 5000, Window: time.Hour}, 1, 115},
		{"one sliding window", throttler.Limit{Quota: 5000, Window: time.Hour, Algorithm: throttler.SlidingWindow}, 1, 170},
		{"one token bucket", throttler.Limit{Quota: 5000, Window: time.Hour, Algorithm: throttler.TokenBucket}, 1, 170},
		{"one sliding log, 4 charges", throttler.Limit{Quota: 5000, Window: time.Hour, Algorithm: throttler.SlidingLog}, 4, 200},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, testserver.Redis(t).Addr)
			b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
			p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{test.limit}}
			clk := clock.NewManual(time.UnixMilli(1_900_000_000_000))
			th := throttler.New(b, &throttler.Options{Clock: clk})
			fill := func(from, to int) {
				for range test.takes {
					clk.Advance(time.Millisecond)
					var all sync.WaitGroup
					// More workers would share round trips, and the server's buffers for large
					// calls are memory too.
					for worker := range redisbackend.MaxRecent {
						all.Go(func() {
							for i := from + worker; i < to; i += redisbackend.MaxRecent {
								if _, err := th.Take(t.Context(), p.Charge(fmt.Sprintf("user-%015d", i))); err != nil {
									t.Error(err)
								}
							}
						})
					}
					all.Wait()
				}
			}
			fill(0, grown)
			fill(0, grown) // as many commands again, so that the tables have moved
			before := settledMemory(t, c)
			fill(grown, grown+clients)
			bytes := (settledMemory(t, c) - before) / clients
			t.Logf("%d bytes a client, without the tables' 16 to 32", bytes)
			if bytes > test.bound {
				t.Errorf("%d bytes a client, want at most %d", bytes, test.bound)
			}
		})
	}
}

// settledMemory returns the used memory once old tables are freed: their keys move in the
// background first.
func settledMemory(t testing.TB, c *redis.Client) int {
	used := usedMemory(t, c)
	for range 3 { // readings without a change
		time.Sleep(110 * time.Millisecond) // the server's cron has run
		if now := usedMemory(t, c); now != used {
			return settledMemory(t, c)
		}
	}
	return used
}

// usedMemory returns the server's used memory, without the buffers of connections.
func usedMemory(t testing.TB, c *redis.Client) int {
	t.Helper()
	info, err := c.Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	field := func(name string) int {
		_, rest, _ := strings.Cut(info, "\n"+name+":")
		value, _, _ := strings.Cut(rest, "\r\n")
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return field("used_memory") - field("mem_clients_normal")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkMovedCost reads the time of a take from the server, for a count that has moved and
// has a claim in front of it.
func BenchmarkMovedCost(b *testing.B) {
	c := newClient(b, testserver.Redis(b).Addr)
	backend := newBackend(b, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1 << 40, Window: time.Hour}}}
	now := time.UnixMilli(1_900_000_000_000)
	keys, _ := costs()
	take := func(i int, placement *handoff.Placement) {
		key := "key" + strconv.Itoa(i%keys)
		r := driver.NewRequest(now.UnixMilli(), throttler.Charge{Policy: p, Key: key, Partition: key, Cost: 1})
		if _, err := backend.TakeAt(context.Background(), r, placement); err != nil {
			b.Fatal(err)
		}
	}
	arrives := &handoff.Placement{Backend: 1, Version: 1, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true}}}
	for i := range keys {
		take(i, arrives)
	}
	var moved []float64
	for b.Loop() {
		moved = append(moved, usecPerCall(b, c, func(i int) { take(i, &handoff.Placement{Backend: 1}) }))
	}
	b.ReportMetric(median(moved), "µs/call")
}
