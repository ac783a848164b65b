package peers

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var (
	// Weir counts in Redis, with a cache of refusals in front, or in memory if its
	// Config names no server.
	Weir = Peer{Name: "weir", Role: Ours, Open: func(c Config) (*Limiter, error) { return openWeir(c, "core", throttler.Limit{}, c.Redis != "", 0) }}

	// weirBucket is Weir with a token bucket, and a policy of its own: it shares Weir's server.
	weirBucket = Peer{Name: "weir", Role: Ours, Open: func(c Config) (*Limiter, error) {
		return openWeir(c, "bucket", throttler.Limit{Algorithm: throttler.TokenBucket}, true, 0)
	}}

	// weirUncached asks Redis about every request.
	weirUncached = Peer{Name: "weir, without its refusal cache", Role: Variant, Open: func(c Config) (*Limiter, error) { return openWeir(c, "core", throttler.Limit{}, false, 0) }}

	// weirDeadline gives each decision a deadline, as the middleware does.
	weirDeadline = Peer{Name: "weir, with a deadline", Role: Variant, Open: func(c Config) (*Limiter, error) {
		return openWeir(c, "core", throttler.Limit{}, c.Redis != "", 5*time.Second)
	}}

	// weirManyLimits decides about six limits of three algorithms at once.
	weirManyLimits = Peer{Name: "weir, 2 policies of 3 limits", Role: Variant, Open: openWeirManyLimits}
)

// openWeir opens weir with one limit, of c's quota and window. A server has serverTime for each decision, if that is not 0.
func openWeir(c Config, name string, limit throttler.Limit, caches bool, serverTime time.Duration) (*Limiter, error) {
	backend, closeAll, err := weirBackend(c)
	if err == nil && caches {
		backend, err = refusals.New(backend, nil)
	}
	if err != nil {
		return nil, err
	}
	limit.Quota, limit.Window = c.Quota, c.Window
	policy := &throttler.Policy{Name: name, Limits: []throttler.Limit{limit}}
	t := throttler.New(backend, nil)
	if serverTime > 0 {
		t = t.WithServerTime(serverTime)
	}
	l := weirLimiter(t, closeAll, policy)
	key := middleware.KeyFunc(func(r *http.Request) (string, bool) { return headerKey(r), true })
	// The default deadline is so short that a busy machine would serve without a limit.
	l.Wrap, err = middleware.New(t, middleware.Limit(policy, key), &middleware.Options{Deadline: 5 * time.Second})
	return l, err
}

func openWeirManyLimits(c Config) (*Limiter, error) {
	limits := []throttler.Limit{
		{Quota: c.Quota, Window: c.Window},
		{Quota: c.Quota, Window: c.Window, Algorithm: throttler.SlidingWindow},
		{Quota: c.Quota, Window: c.Window, Algorithm: throttler.TokenBucket},
	}
	return openPolicies(c, nil, &throttler.Policy{Name: "one", Limits: limits}, &throttler.Policy{Name: "other", Limits: limits})
}

// WeirLimits opens weir with a policy of n fixed windows, in memory if c names no server.
func WeirLimits(c Config, n int) (*Limiter, error) {
	policy := &throttler.Policy{Name: "limits" + strconv.Itoa(n)}
	for i := range n {
		policy.Limits = append(policy.Limits, throttler.Limit{Quota: c.Quota, Window: c.Window * time.Duration(i+1)})
	}
	return openPolicies(c, nil, policy)
}

// WeirLog opens weir with a sliding log of c.Quota charges. Each take is 1 ms of weir's time
// after the last, so a full log drops one charge for each that it adds.
func WeirLog(c Config) (*Limiter, error) {
	now := clock.NewManual(time.Now())
	l, err := openPolicies(c, &throttler.Options{Clock: now}, &throttler.Policy{
		Name:   "log" + strconv.FormatInt(c.Quota, 10),
		Limits: []throttler.Limit{{Quota: c.Quota, Window: time.Duration(c.Quota) * time.Millisecond, Algorithm: throttler.SlidingLog}},
	})
	if err != nil {
		return nil, err
	}
	take := l.Take
	l.Take = func(ctx context.Context, key string) (bool, error) {
		now.Advance(time.Millisecond)
		return take(ctx, key)
	}
	return l, nil
}

// WeirShards returns the function that assigns keys to n shards, with names like an
// operator's. It needs no server.
func WeirShards(n int) (shardOf func(key string) string, closeAll func(), err error) {
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:0"}})
	if err != nil {
		return nil, nil, err
	}
	shards := make([]redisbackend.Shard, n)
	for i := range shards {
		shards[i] = redisbackend.Shard{Name: "shard-" + strconv.Itoa(i+1), Primary: client}
	}
	backend, err := redisbackend.New(shards, nil)
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	return func(key string) string { return backend.Locate(policy.Charge(key)).Shard }, func() { _ = client.Close() }, err
}

// weirBackend returns weir's backend over a redis-server or, if c names no server, in memory.
func weirBackend(c Config) (driver.Backend, func(), error) {
	if c.Redis == "" {
		// The bounds are divided among locks, so leave room for twice the keys.
		backend, err := memorybackend.New(&memorybackend.Options{
			MaxKeys:  max(2*c.Keys, memorybackend.DefaultMaxKeys),
			MaxBytes: max(2*int64(c.Keys)*1024, memorybackend.DefaultMaxBytes),
		})
		return backend, func() {}, err
	}
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{c.Redis}})
	if err != nil {
		return nil, nil, err
	}
	backend, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return backend, func() {
		backend.Close()
		_ = client.Close()
	}, nil
}

// openPolicies opens weir without a cache of refusals.
func openPolicies(c Config, o *throttler.Options, policies ...*throttler.Policy) (*Limiter, error) {
	backend, closeAll, err := weirBackend(c)
	if err != nil {
		return nil, err
	}
	return weirLimiter(throttler.New(backend, o), closeAll, policies...), nil
}

// weirLimiter decides under one policy, or under two together.
func weirLimiter(t *throttler.Throttler, closeAll func(), policies ...*throttler.Policy) *Limiter {
	w := &weirTaker{t, policies}
	if len(policies) == 1 {
		return &Limiter{Take: w.takeOne, Close: closeAll}
	}
	return &Limiter{Take: w.takeTwo, Close: closeAll}
}

// weirTaker has methods instead of closures: the compiler does not inline Take into the
// closures of a function that is itself inlined, although it does for users.
type weirTaker struct {
	throttler *throttler.Throttler
	policies  []*throttler.Policy
}

func (w *weirTaker) takeOne(ctx context.Context, key string) (allowed bool, err error) {
	d, err := w.throttler.Take(ctx, w.policies[0].Charge(key))
	return d.Allowed, err
}

func (w *weirTaker) takeTwo(ctx context.Context, key string) (allowed bool, err error) {
	d, err := w.throttler.Take(ctx, w.policies[0].Charge(key), w.policies[1].Charge(key))
	return d.Allowed, err
}
