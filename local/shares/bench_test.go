package shares

import (
	"context"
	"strconv"

	"fmt"
	"sync"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// BenchmarkTake compares decisions with package memory's, by goroutines that do nothing else.
func BenchmarkTake(b *testing.B) {
	const keys = 1 << 16
	policy := tokens("core", 1_000_000, time.Millisecond, 0)
	shared := newAlone(b, nil)
	shared.learn([]throttler.Charge{policy.Charge("")})
	charges := make([]throttler.Charge, keys)
	for i := range charges {
		key := "client-" + strconv.Itoa(i)
		charges[i] = throttler.Charge{Policy: policy, Key: key, Cost: 1, Partition: key}
	}
	for _, backend := range []struct {
		name string
		driver.Backend
	}{{"shares", shared.Backend}, {"memory", memorybackend.NewDefault()}} {
		for _, load := range []struct {
			name string
			mask int
		}{{"one key", 0}, {"65536 keys", keys - 1}} {
			for _, goroutines := range []int{1, 2, 8} {
				b.Run(fmt.Sprintf("%s/%s/%d", backend.name, load.name, goroutines), func(b *testing.B) {
					b.ReportAllocs()
					var all sync.WaitGroup
					for g := range goroutines {
						all.Go(func() {
							now := time.Now().UnixMilli()
							at := g * 7919
							for i := range b.N / goroutines {
								if i%1024 == 0 {
									now = time.Now().UnixMilli()
								}
								at = (at + 40_503) & load.mask
								if _, err := backend.Take(context.Background(), driver.NewRequest(now, charges[at])); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					all.Wait()
				})
			}
		}
	}
}
