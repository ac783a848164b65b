package shares

import (
	"context"
	"strconv"

	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// mutexBucket is the same behind one mutex, to compare with.
type mutexBucket struct {
	mu sync.Mutex
	level
}

func (b *mutexBucket) take(s *share, n, now int64) (v level, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v = b.level
	if s.has(v, s.capacity, now) {
		v = level{now, s.capacity}
	}
	if n > s.capacity || !s.has(v, n, now) {
		return v, false
	}
	v.tokens -= n
	b.level = v
	return v, true
}

// BenchmarkBucket measures takes by goroutines that do nothing else, at one bucket.
func BenchmarkBucket(b *testing.B) {
	s := newShare(maxTokens, 1, maxTokens)
	start := time.Now()
	var word bucket
	var mutex mutexBucket
	for _, kind := range []struct {
		name string
		take func(s *share, n, now int64) (level, bool)
	}{{"compare-and-swap", word.take}, {"mutex", mutex.take}} {
		for _, goroutines := range []int{1, 2, 8} {
			b.Run(fmt.Sprintf("%s/%d", kind.name, goroutines), func(b *testing.B) {
				var all sync.WaitGroup
				for range goroutines {
					all.Go(func() {
						now := time.Since(start).Milliseconds() + maxInstant/2
						for i := range b.N / goroutines {
							if i%1024 == 0 {
								now = time.Since(start).Milliseconds() + maxInstant/2
							}
							kind.take(&s, 1, now)
						}
					})
				}
				all.Wait()
			})
		}
	}
	runtime.KeepAlive(&word)
}

// BenchmarkTake measures decisions next to package memory's, by goroutines that do
// nothing else.
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
