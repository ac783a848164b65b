package backendtest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Bench runs the same benchmarks on every backend, for numbers that can be
// compared: one operation is one decision. open returns an empty backend and is
// called for each benchmark.
func Bench(b *testing.B, open func(b *testing.B) driver.Backend) {
	hour := throttler.Limit{Quota: quota.MaxQuota, Window: time.Hour}
	single := &throttler.Policy{Name: "one", Limits: []throttler.Limit{hour}}
	two := &throttler.Policy{Name: "two", Limits: []throttler.Limit{hour, {Quota: quota.MaxQuota, Window: time.Minute}}}
	nothing := &throttler.Policy{Name: "nothing", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("client-%d", i)
	}
	hot := keys[:1]

	b.Run("take/keys=100000", func(b *testing.B) { benchTake(b, open(b), single, keys) })
	b.Run("take/keys=1", func(b *testing.B) { benchTake(b, open(b), single, hot) })
	b.Run("take/two limits/keys=100000", func(b *testing.B) { benchTake(b, open(b), two, keys) })
	b.Run("take/refused", func(b *testing.B) { benchRefused(b, open(b), nothing) })
	b.Run("peek/keys=1", func(b *testing.B) { benchPeek(b, open(b), single, hot[0]) })
	b.Run("take and refund/keys=1", func(b *testing.B) { benchRefund(b, open(b), single, hot[0]) })
	b.Run("parallel take/keys=100000", func(b *testing.B) { benchParallel(b, open(b), single, keys) })
	b.Run("parallel take/keys=1", func(b *testing.B) { benchParallel(b, open(b), single, hot) })
	for _, a := range quota.Algorithms() {
		// A sliding log stores each charge; the others might as well have this quota.
		p := &throttler.Policy{Name: "algorithm", Limits: []throttler.Limit{{Quota: 100, Window: time.Second, Algorithm: a}}}
		b.Run("take/"+a.String()+"/keys=100000", func(b *testing.B) { benchTake(b, open(b), p, keys) })
	}
}

func benchTake(b *testing.B, backend driver.Backend, p *throttler.Policy, keys []string) {
	t := throttler.New(backend, nil)
	ctx := b.Context()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := t.Take(ctx, p.Charge(keys[i%len(keys)])); err != nil {
			b.Fatal(err)
		}
	}
}

func benchRefused(b *testing.B, backend driver.Backend, p *throttler.Policy) {
	t := throttler.New(backend, nil)
	ctx := b.Context()
	if _, err := t.Take(ctx, p.Charge("client")); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, err := t.Take(ctx, p.Charge("client")); err != nil || d.Allowed {
			b.Fatalf("got allowed %v, error %v; want a refusal", d.Allowed, err)
		}
	}
}

func benchPeek(b *testing.B, backend driver.Backend, p *throttler.Policy, key string) {
	t := throttler.New(backend, nil)
	ctx := b.Context()
	if _, err := t.Take(ctx, p.Charge(key)); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := t.Peek(ctx, p.Charge(key)); err != nil {
			b.Fatal(err)
		}
	}
}

func benchRefund(b *testing.B, backend driver.Backend, p *throttler.Policy, key string) {
	t := throttler.New(backend, nil)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		d, err := t.Take(ctx, p.Charge(key))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := t.Refund(ctx, d); err != nil {
			b.Fatal(err)
		}
	}
}

func benchParallel(b *testing.B, backend driver.Backend, p *throttler.Policy, keys []string) {
	t := throttler.New(backend, nil)
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		// Goroutines that walk the keys from the same place would contend for each.
		for i := rand.IntN(len(keys)); pb.Next(); i++ {
			if _, err := t.Take(ctx, p.Charge(keys[i%len(keys)])); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
