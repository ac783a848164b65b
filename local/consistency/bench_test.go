package consistency_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// BenchmarkTake compares decisions with levels to the same decisions without.
func BenchmarkTake(b *testing.B) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota.MaxQuota, Window: time.Hour, Aligned: true}}}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"}) // no root: nothing syncs
	defer client.Close()
	soft, err := synced.New([]synced.Root{{Name: "root", Client: client}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer soft.Close()
	for _, level := range []consistency.Level{consistency.Leased, consistency.Synced} {
		table, err := consistency.NewTable(nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := table.Begin(policy, level); err != nil {
			b.Fatal(err)
		}
		store, err := leased.New(memorybackend.NewDefault(), &leased.Options{Busy: 1, Leases: table.Leases})
		if err != nil {
			b.Fatal(err)
		}
		defer store.Close(context.Background())
		alone := driver.Backend(store)
		if level == consistency.Synced {
			alone = soft
		}
		both, err := consistency.New(store, soft, table)
		if err != nil {
			b.Fatal(err)
		}
		for name, backend := range map[string]driver.Backend{"alone": alone, "levels": both} {
			b.Run(level.String()+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				th := throttler.New(backend, nil)
				for b.Loop() {
					if _, err := th.Take(context.Background(), policy.Charge("alice")); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
