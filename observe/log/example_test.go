package weirlog_test

import (
	"context"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
)

// A limit's refusals are logged once a minute: the next line has their count.
func ExampleNew() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: weirlog.New(log, nil)})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	for range 500 {
		_, _ = t.Take(context.Background(), core.Charge("alice"))
	}
	// Output: level=INFO msg="rate limit: refusals" policy=core limit="2 per 1h" count=1
}

// The backend and the middleware have the throttler's observer.
func ExampleNew_redis() {
	var metrics observe.Nothing // or the Observer of package prom or otel
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{"redis-a.internal:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	shards := []redisbackend.Shard{{Name: "a", Primary: client}}

	backend, err := redisbackend.New(shards, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()

	observer := observe.All(metrics, weirlog.New(slog.Default(), nil))
	t := throttler.New(backend, &throttler.Options{Observer: observer})

	_ = t
}
