package peers

import (
	"context"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var (
	// Weir counts in Redis, with a cache of refusals in front, or in memory if its
	// Config names no server.
	Weir = Peer{Name: "weir", Role: Ours, Open: openWeir}

	// weirUncached asks Redis about every request.
	weirUncached = Peer{Name: "weir, without its refusal cache", Role: Variant, Open: openWeirUncached}

	// weirDeadline gives each decision a deadline, as the middleware does.
	weirDeadline = Peer{Name: "weir, with a deadline", Role: Variant, Open: openWeirDeadline}

	// weirManyLimits decides about six limits of three algorithms at once.
	weirManyLimits = Peer{Name: "weir, 2 policies of 3 limits", Role: Variant, Open: openWeirManyLimits}
)

func openWeir(c Config) (*Limiter, error) {
	backend, closeAll, err := weirBackend(c)
	if err != nil {
		return nil, err
	}
	if c.Redis != "" {
		if backend, err = refusals.New(backend, nil); err != nil {
			closeAll()
			return nil, err
		}
	}
	return weirWithMiddleware(backend, c, closeAll)
}

func openWeirUncached(c Config) (*Limiter, error) {
	backend, closeAll, err := weirBackend(c)
	if err != nil {
		return nil, err
	}
	return weirWithMiddleware(backend, c, closeAll)
}

func weirWithMiddleware(backend driver.Backend, c Config, closeAll func()) (*Limiter, error) {
	t := throttler.New(backend, nil)
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: c.Quota, Window: c.Window}}}
	key := middleware.KeyFunc(func(r *http.Request) (string, bool) { return headerKey(r), true })
	l := weirLimiter(t, closeAll, policy)
	var err error
	// The default deadline is so short that a busy machine would serve without a limit.
	o := &middleware.Options{Deadline: 5 * time.Second}
	if l.Wrap, err = middleware.New(t, middleware.Limit(policy, key), o); err != nil {
		closeAll()
		return nil, err
	}
	return l, nil
}

func openWeirDeadline(c Config) (*Limiter, error) {
	l, err := openWeir(c)
	if err != nil {
		return nil, err
	}
	take := l.Take
	l.Take = func(ctx context.Context, key string) (bool, error) {
		ctx, cancel := driver.WithServerTime(ctx, 5*time.Second)
		defer cancel()
		return take(ctx, key)
	}
	return l, nil
}

func openWeirManyLimits(c Config) (*Limiter, error) {
	backend, closeAll, err := weirBackend(c)
	if err != nil {
		return nil, err
	}
	policy := func(name string) *throttler.Policy {
		return &throttler.Policy{Name: name, Limits: []throttler.Limit{
			{Quota: c.Quota, Window: c.Window},
			{Quota: c.Quota, Window: c.Window, Algorithm: throttler.SlidingWindow},
			{Quota: c.Quota, Window: c.Window, Algorithm: throttler.TokenBucket},
		}}
	}
	return weirLimiter(throttler.New(backend, nil), closeAll, policy("one"), policy("other")), nil
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
	closeAll := func() { _ = client.Close() }
	backend, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return backend, func() {
		backend.Close()
		closeAll()
	}, nil
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
