package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/decision"
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

func TestDeadlineHoldsWithAnyClient(t *testing.T) {
	server := testserver.Redis(t)
	plain := redis.NewClient(&redis.Options{Addr: server.Addr}) // would wait for its ReadTimeout
	t.Cleanup(func() { _ = plain.Close() })
	p := policy("core", perHour(100))
	for name, c := range map[string]*redis.Client{"plain": plain, "recommended": newClient(t, server.Addr)} {
		b := newBench(t, c)
		if _, err := b.Take(t.Context(), p.Charge("alice")); err != nil {
			t.Fatal(err)
		}
		server.Pause()
		for call, do := range map[string]func(context.Context, ...throttler.Charge) (throttler.Decision, error){"take": b.Take, "peek": b.Peek} {
			var began time.Time
			_, err := sent(t, 30*time.Millisecond, func(ctx context.Context) (throttler.Decision, error) {
				began = time.Now()
				return do(ctx, p.Charge("alice"))
			})
			if !errors.Is(err, throttler.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, %s of a server that hangs: error %v, want ErrUnavailable and context.DeadlineExceeded", name, call, err)
			}
			if waited := time.Since(began); waited > 2*time.Second { // ReadTimeout is 5 s
				t.Errorf("%s, %s returned after %v, its deadline was 30 ms", name, call, waited)
			}
		}
		server.Resume()
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

func TestClocksThatDiffer(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	other := newBench(t, b.client)
	p := policy("core", throttler.Limit{Quota: 10, Window: time.Minute})
	take := func(who bench, at time.Duration) decision.Status {
		t.Helper()
		who.clock.Set(t0.Add(at))
		d, err := who.Take(t.Context(), p.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		return d.Limit(0)
	}
	expiry := func() time.Duration {
		t.Helper()
		left, err := b.client.PTTL(t.Context(), b.backend.Locate(p.Charge("alice")).Key).Result()
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	first := take(b, 0)
	for i, at := range []time.Duration{time.Second, -time.Hour, -24 * 365 * time.Hour, 59 * time.Second} {
		s := take(other, at)
		if !s.ResetAt.Equal(first.ResetAt) || s.Used != int64(i+2) {
			t.Errorf("a clock %v off: used %d, reset at %v; want %d, %v", at, s.Used, s.ResetAt, i+2, first.ResetAt)
		}
		if left := expiry(); left <= 0 || left > time.Minute+algorithm.Margin {
			t.Errorf("a clock %v off: the key expires in %v, want within a minute and the margin", at, left)
		}
	}

	// A clock that has stopped must not renew the expiry: the window would
	// never end.
	key := b.backend.Locate(p.Charge("alice")).Key
	if err := b.client.PExpire(t.Context(), key, 900*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	take(b, 0)
	if left := expiry(); left > 900*time.Millisecond {
		t.Errorf("a charge under a clock that has stopped renewed the expiry to %v", left)
	}

	ahead := take(other, 10*time.Minute)
	if ahead.Used != 1 || !ahead.ResetAt.After(first.ResetAt) {
		t.Errorf("a clock past reset-at: used %d, reset at %v; want a new window", ahead.Used, ahead.ResetAt)
	}
	if s := take(b, 2*time.Minute); s.Used != 2 || !s.ResetAt.Equal(ahead.ResetAt) {
		t.Errorf("behind it: used %d, reset at %v; want 2 in the window of %v", s.Used, s.ResetAt, ahead.ResetAt)
	}
	if left := expiry(); left <= 0 || left > time.Minute+algorithm.Margin {
		t.Errorf("after it: the key expires in %v", left)
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

// A foreign value under a key must not be read as a count.
func TestForeignValue(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	p := policy("core", perHour(10))
	key := b.backend.Locate(p.Charge("alice")).Key
	if err := b.client.Set(t.Context(), key, "hello", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(t.Context(), p.Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("Take: %v, want ErrUnavailable", err)
	}
	if _, err := b.Peek(t.Context(), p.Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("Peek: %v, want ErrUnavailable", err)
	}
	c := p.Charge("alice")
	c.Partition = c.Key
	for _, readOnly := range []bool{true, false} {
		r := handoff.ReleaseRequest{Now: t0.UnixMilli(), Charges: []throttler.Charge{c}, To: handoff.IDOf("b"), Version: 1, ReadOnly: readOnly}
		if _, err := b.backend.Release(t.Context(), r); !errors.Is(err, throttler.ErrUnavailable) {
			t.Errorf("Release: %v, want ErrUnavailable", err)
		}
	}
	if value := b.client.Get(t.Context(), key).Val(); value != "hello" {
		t.Errorf("the value has become %q", value)
	}
}

func TestPeekAsksAReplicaAndNeverLies(t *testing.T) {
	primary := testserver.Redis(t)
	replica := testserver.RedisReplica(t, primary)
	replicaClient := newClient(t, replica.Addr)
	b := newBench(t, newClient(t, primary.Addr), replicaClient)
	p := policy("core", perHour(10))
	taken, err := b.Take(t.Context(), p.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	for key := b.backend.Locate(p.Charge("alice")).Key; replicaClient.Exists(t.Context(), key).Val() == 0; {
		if t.Context().Err() != nil {
			t.Fatal("the replica never got the key")
		}
	}
	b.backend.Check()
	peek := func(want int64, wantReset time.Time, what string) {
		t.Helper()
		d, err := b.Peek(t.Context(), p.Charge("alice"))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if s := d.Limit(0); s.Used != want || !s.ResetAt.Equal(wantReset) {
			t.Errorf("%s: used %d, reset at %v; want %d, %v", what, s.Used, s.ResetAt, want, wantReset)
		}
	}
	reset := taken.Limit(0).ResetAt
	gets := commandStats(t, b.client)["get"].calls // the script's
	peek(1, reset, "on a replica")
	if n := commandStats(t, b.client)["get"].calls - gets; n != 0 {
		t.Errorf("the primary served %d peeks while a replica was up", n)
	}

	// The replica still holds the window that has ended by the caller's clock.
	b.clock.Set(reset)
	peek(0, reset, "at reset-at, with the dead window on the replica")
	b.clock.Set(t0)

	replica.Pause()
	if _, err := b.Take(t.Context(), p.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	peek(2, reset, "with the replica paused")
	replica.Resume()
	replica.Stop()
	peek(2, reset, "with the replica dead")
}
