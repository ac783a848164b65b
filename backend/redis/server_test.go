package redisbackend_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
)

var t0 = time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC)

// A bench is one throttler over one shard, with a manual clock.
type bench struct {
	*throttler.Throttler
	backend *redisbackend.Backend
	clock   *clock.Manual
	client  *redis.Client
}

func newBench(t testing.TB, c *redis.Client, replicas ...redis.UniversalClient) bench {
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c, Replicas: replicas}},
		&redisbackend.Options{ReplicaTimeout: time.Second}) // a busy machine may take long
	clk := clock.NewManual(t0)
	return bench{throttler.New(b, &throttler.Options{Clock: clk}), b, clk, c}
}

func policy(name string, limits ...throttler.Limit) *throttler.Policy {
	return &throttler.Policy{Name: name, Limits: limits}
}

func perHour(quota int64) throttler.Limit {
	return throttler.Limit{Quota: quota, Window: time.Hour}
}

func TestOneScriptCallADecision(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	mixed := policy("mixed", perHour(5),
		throttler.Limit{Quota: 9, Window: time.Minute, Algorithm: throttler.SlidingLog},
		throttler.Limit{Quota: 9, Window: time.Minute, Algorithm: throttler.TokenBucket})
	for _, test := range []struct {
		name     string
		parallel int
		charges  []throttler.Charge
	}{
		{"one fixed window", 1, []throttler.Charge{policy("core", perHour(5)).Charge("alice")}},
		{"three limits", 1, []throttler.Charge{mixed.Charge("alice")}},
		{"a chain", 1, []throttler.Charge{mixed.Charge("acme"), mixed.Charge("blue").Within("acme"), mixed.Charge("alice").Within("acme")}},
		{"three partitions on one server", 1, []throttler.Charge{mixed.Charge("carol"), mixed.Charge("home"), mixed.Charge("all")}},
		{"many at once", 16, []throttler.Charge{policy("core", perHour(500)).Charge("bob")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			other := slices.Clone(test.charges)
			for i := range other {
				other[i].Key += " too"
			}
			if _, err := b.Take(t.Context(), other...); err != nil { // connected, and its script is known
				t.Fatal(err)
			}
			if err := b.backend.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := b.client.ConfigResetStat(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			const calls = 32
			var refused atomic.Int64
			var all sync.WaitGroup
			for range test.parallel {
				all.Go(func() {
					for range calls / test.parallel {
						d, err := b.Take(t.Context(), test.charges...)
						if err != nil {
							t.Error(err)
						}
						if !d.Allowed {
							refused.Add(1)
						}
					}
				})
			}
			all.Wait()
			if test.parallel == 1 && refused.Load() != calls-5 {
				t.Errorf("%d of %d were refused, want all but 5", refused.Load(), calls)
			}
			for command, stat := range commandStats(t, b.client) {
				switch command {
				case "evalsha":
					if stat.calls != calls && (test.parallel == 1 || stat.calls > calls) {
						t.Errorf("%d EVALSHA for %d decisions", stat.calls, calls)
					}
				case "get", "mget", "set", "incr", "getrange": // by the script
				case "config", "config|resetstat", "info", "hello", "client|setinfo":
				default:
					t.Errorf("%d calls of %s in addition to the script", stat.calls, command)
				}
			}
		})
	}
}

func TestForgottenScriptIsSentAgainInTheSameCall(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	p := policy("core", perHour(5))
	for want := int64(1); want <= 3; want++ {
		if err := b.client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		d, err := b.Take(t.Context(), p.Charge("alice"))
		if err != nil || d.Limit(0).Used != want {
			t.Fatalf("after SCRIPT FLUSH: used %d, error %v; want %d, none", d.Binding().Used, err, want)
		}
	}
}

func TestDeadShardLeavesTheOthersAlone(t *testing.T) {
	servers := []*testserver.RedisServer{testserver.Redis(t), testserver.Redis(t)}
	b := newBackend(t, []redisbackend.Shard{
		{Name: "a", Primary: newClient(t, servers[0].Addr)},
		{Name: "b", Primary: newClient(t, servers[1].Addr)},
	}, nil)
	th := throttler.New(b, nil)
	p := policy("core", perHour(100))
	keyOn := make(map[string]string)
	for i := 0; len(keyOn) < 2; i++ {
		key := fmt.Sprint("key", i)
		keyOn[b.Locate(p.Charge(key)).Shard] = key
	}
	servers[0].Stop()
	if _, err := th.Take(t.Context(), p.Charge(keyOn["a"])); !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), `shard "a"`) {
		t.Errorf(`on the dead shard: %v, want an error that wraps ErrUnavailable and names shard "a"`, err)
	}
	if d, err := th.Take(t.Context(), p.Charge(keyOn["b"])); err != nil || !d.Allowed {
		t.Errorf("on the live shard: allowed %v, error %v", d.Allowed, err)
	}
	if err := b.Load(t.Context()); err == nil || !strings.Contains(err.Error(), `shard "a"`) || strings.Contains(err.Error(), `shard "b"`) {
		t.Errorf(`Load: %v, want an error about shard "a" alone`, err)
	}
}

// An expiry is set only when a reset time moves forward: if a stopped clock extended it, the
// window would stay open forever.
func TestExpiryFollowsTheResetTime(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	day := throttler.Limit{Quota: 10, Window: 24 * time.Hour}
	for name, test := range map[string]struct {
		limits []throttler.Limit
		renews bool // each charge moves the latest reset time
	}{
		"one window":     {[]throttler.Limit{day}, false},
		"a long one":     {[]throttler.Limit{{Quota: 10, Window: 100 * time.Hour}}, false},
		"two windows":    {[]throttler.Limit{perHour(10), day}, false},
		"sliding window": {[]throttler.Limit{{Quota: 10, Window: time.Hour, Algorithm: throttler.SlidingWindow}}, false},
		"mixed, a window is the last to end": {[]throttler.Limit{
			day, {Quota: 10, Window: time.Minute, Algorithm: throttler.TokenBucket}, {Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket},
		}, false},
		"mixed, a bucket is the last to end": {[]throttler.Limit{
			{Quota: 10, Window: time.Minute}, {Quota: 10, Window: 24 * time.Hour, Algorithm: throttler.TokenBucket},
		}, true},
		"leaky bucket": {[]throttler.Limit{{Quota: 10, Window: time.Hour, Algorithm: throttler.LeakyBucket}}, true},
		"sliding log":  {[]throttler.Limit{{Quota: 10, Window: time.Hour, Algorithm: throttler.SlidingLog}}, false},
	} {
		c := policy(strings.NewReplacer(" ", "-", ",", "").Replace(name), test.limits...).Charge("alice")
		key := b.backend.Locate(c).Key
		charge := func() throttler.Decision {
			t.Helper()
			d, err := b.Take(t.Context(), c)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return d
		}
		expiry := func() time.Duration {
			t.Helper()
			left, err := b.client.PTTL(t.Context(), key).Result()
			if err != nil {
				t.Fatal(err)
			}
			return left
		}
		d := charge()
		latest := d.At()
		for _, s := range d.Limits() {
			if s.ResetAt.After(latest) {
				latest = s.ResetAt
			}
		}
		if left, want := expiry(), latest.Sub(d.At())+algorithm.Margin; left > want || left < want-time.Minute {
			t.Errorf("%s: the key expires in %v, want %v", name, left, want)
		}
		const short = 90 * time.Second
		b.client.PExpire(t.Context(), key, short)
		d = charge()
		if left := expiry(); (left > short) != test.renews || left <= 0 {
			t.Errorf("%s: after a charge at the same time the key expires in %v; renewed: want %v", name, left, test.renews)
		}
		b.client.PExpire(t.Context(), key, short)
		if _, err := b.Refund(t.Context(), d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if left := expiry(); left > short || left <= 0 {
			t.Errorf("%s: after a refund the key expires in %v, want %v", name, left, short)
		}
	}
}

func TestKeysShowNothingAndStayInOneSlot(t *testing.T) {
	c := newClient(t, testserver.Redis(t).Addr)
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
	for _, key := range []string{"", "alice@example.org", "{}", "}{", "\x00\n", strings.Repeat("x", 10_000)} {
		own := b.Locate(throttler.Charge{Policy: policy("core"), Key: key}).Key
		inChain := b.Locate(throttler.Charge{Policy: policy("core"), Key: "member", Partition: key}).Key
		if key != "" && strings.Contains(own, key) {
			t.Errorf("the Redis key %q shows the key", own)
		}
		if len(own) > 30 {
			t.Errorf("the Redis key %q has %d bytes, more than 30", own, len(own))
		}
		if key == "" {
			continue
		}
		if a, b := c.ClusterKeySlot(t.Context(), own).Val(), c.ClusterKeySlot(t.Context(), inChain).Val(); a != b {
			t.Errorf("%q and %q lie in slots %d and %d", own, inChain, a, b)
		}
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = c.Close() })
	good := []redisbackend.Shard{{Name: "a", Primary: c}}
	for _, test := range []struct {
		shards  []redisbackend.Shard
		options *redisbackend.Options
		want    string
	}{
		{nil, nil, "shards is empty; it must have at least one"},
		{[]redisbackend.Shard{{Primary: c}}, nil, "shards[0].Name is empty; it must be set, for it decides which keys live there"},
		{[]redisbackend.Shard{{Name: "a"}}, nil, `shards[0].Primary is nil; it must be a client of the primary of "a"`},
		{[]redisbackend.Shard{{Name: "a", Primary: c, Replicas: []redis.UniversalClient{c, nil}}}, nil, `shards[0].Replicas[1] is nil; it must be a client of a replica of "a", or be left out`},
		{append(good, good...), nil, `shards[1].Name is "a", as shards[0].Name is; names must differ`},
		{good, &redisbackend.Options{Prefix: "x{y}"}, `Prefix is "x{y}"; it must not have braces, which choose a cluster's slot`},
		{good, &redisbackend.Options{Margin: -time.Second}, "Margin is -1s; it must be from 1ms to 49 days, or 0 for 10s"},
		{good, &redisbackend.Options{Margin: time.Microsecond}, "Margin is 1µs; it must be from 1ms to 49 days, or 0 for 10s"},
		{good, &redisbackend.Options{ReplicaTimeout: -time.Second}, "ReplicaTimeout is -1s; it must be positive, or 0 for 20ms"},
	} {
		_, err := redisbackend.New(test.shards, test.options)
		if want := "redisbackend: " + test.want; err == nil || err.Error() != want || !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("New(%v, %+v): %v, want %s", test.shards, test.options, err, want)
		}
	}
}
