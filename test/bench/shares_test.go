package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/local/shares"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// nowhere is the transport of a single member.
type nowhere struct{}

func (nowhere) Send(context.Context, string, []byte) ([]byte, error) {
	return nil, errors.New("there is no other member")
}

// BenchmarkShares measures decisions about one token bucket in goroutines that do nothing
// else. Almost none are refused, only if the scheduler delays them by a window.
func BenchmarkShares(b *testing.B) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 4_000_000, Window: time.Millisecond, Algorithm: throttler.TokenBucket}}}
	shared, err := shares.New("alone", shares.List{Epoch: 1, Members: []string{"alone"}}, nowhere{}, []*throttler.Policy{policy}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer shared.Close()
	for shared.Status().Quotas[0].Units < 4_000_000 {
		runtime.Gosched()
	}
	takes := func(backend driver.Backend) func() {
		t := throttler.New(backend, nil)
		return func() {
			if _, err := t.Take(context.Background(), policy.Charge("alice")); err != nil {
				b.Error(err)
			}
		}
	}
	limiter := rate.NewLimiter(4_000_000_000, 4_000_000)
	for _, peer := range []struct {
		name string
		take func()
	}{{"shares", takes(shared)}, {"memory", takes(memorybackend.NewDefault())}, {"x-time-rate", func() { limiter.Allow() }}} {
		for _, goroutines := range []int{1, 2, 8} {
			b.Run(fmt.Sprintf("%s/%d", peer.name, goroutines), func(b *testing.B) {
				var running sync.WaitGroup
				for range goroutines {
					running.Go(func() {
						for range b.N / goroutines {
							peer.take()
						}
					})
				}
				running.Wait()
			})
		}
	}
}
