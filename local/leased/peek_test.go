package leased_test

import (
	"context"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// peeking is a backend that calls after with the answer of each peek, if it is not nil.
type peeking struct {
	driver.Backend
	after func(d *driver.Decision)
}

func (p *peeking) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := p.Backend.Peek(ctx, r)
	if p.after != nil {
		p.after(&d)
	}
	return d, err
}

// A peek promises no more than takes get: it adds held units only to counts that contain
// them, and if takes spend them.
func TestPeeksAddOnlyWhatTakesSpend(t *testing.T) {
	p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour, Aligned: true}}}
	for name, test := range map[string]func(store *peeking, leases *bool, b *leased.Backend, take func()) (used int64){
		"as usual": func(*peeking, *bool, *leased.Backend, func()) int64 { return 50 },
		"after a reset by another process": func(store *peeking, _ *bool, _ *leased.Backend, _ func()) int64 {
			if err := store.Reset(t.Context(), request(p, t0)); err != nil {
				t.Fatal(err)
			}
			if _, err := store.Take(t.Context(), request(p, t0)); err != nil {
				t.Fatal(err)
			}
			return 0
		},
		"no longer leased": func(store *peeking, leases *bool, _ *leased.Backend, _ func()) int64 {
			*leases = false
			d, err := store.Peek(t.Context(), request(p, t0))
			if err != nil {
				t.Fatal(err)
			}
			return d.Results()[0].Used
		},
		"degraded": func(store *peeking, _ *bool, _ *leased.Backend, _ func()) int64 {
			store.after = func(d *driver.Decision) { d.Degraded, d.Results()[0].Used = true, 7 }
			return 7
		},
		"leased meanwhile": func(store *peeking, _ *bool, b *leased.Backend, take func()) int64 {
			store.after = func(*driver.Decision) {
				for before := b.Stats().Leases; b.Stats().Leases == before; {
					take()
				}
			}
			return 50
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, leases := &peeking{Backend: memorybackend.NewDefault()}, true
			b := open(t, store, &leased.Options{Clock: clock.NewManual(t0), Leases: func(*throttler.Policy) bool { return leases }})
			take := func() {
				if d, err := b.Take(t.Context(), request(p, t0)); err != nil || !d.Allowed {
					t.Error(d, err)
				}
			}
			for range 50 {
				take()
			}
			want := test(store, &leases, b, take)
			if d, err := b.Peek(t.Context(), request(p, t0)); err != nil || d.Results()[0].Used < want || name == "as usual" && d.Results()[0].Used != want {
				t.Errorf("%v, %v; want %d used", d.Results(), err, want)
			}
		})
	}
}
