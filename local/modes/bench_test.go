package modes_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/modes"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// BenchmarkTake compares decisions with modes to the same decisions without.
func BenchmarkTake(b *testing.B) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota.MaxQuota, Window: time.Hour, Aligned: true}}}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"}) // no root: nothing syncs
	defer client.Close()
	soft, err := synced.New([]synced.Root{{Name: "root", Client: client}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer soft.Close()
	for _, mode := range []modes.Mode{modes.Leased, modes.Synced} {
		table, err := modes.NewTable(nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := table.Begin(policy, mode); err != nil {
			b.Fatal(err)
		}
		store, err := leased.New(memorybackend.NewDefault(), &leased.Options{Busy: 1, Leases: table.Leases})
		if err != nil {
			b.Fatal(err)
		}
		defer store.Close(context.Background())
		alone := driver.Backend(store)
		if mode == modes.Synced {
			alone = soft
		}
		both, err := modes.New(store, soft, table)
		if err != nil {
			b.Fatal(err)
		}
		for name, backend := range map[string]driver.Backend{"alone": alone, "modes": both} {
			b.Run(mode.String()+"/"+name, func(b *testing.B) {
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
