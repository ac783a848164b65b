package leased_test

import (
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
)

// The limit that binds is the limit nearest to its quota by the store's counts, also in answers
// from a lease: otherwise clients that pace themselves would see 2 of 5,000 left.
func TestTheLimitThatBindsIsTheStores(t *testing.T) {
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5000, Window: time.Hour}}}
	secondary := &throttler.Policy{Name: "secondary", Limits: []throttler.Limit{{Quota: 900, Window: time.Minute}, {Quota: 800, Window: 10 * time.Second}}}
	c := clock.NewManual(t0)
	b := open(t, memorybackend.NewDefault(), &leased.Options{Clock: c})
	th := throttler.New(b, &throttler.Options{Clock: c})
	for i := range 200 {
		d, err := th.Take(t.Context(), core.Charge("k"), secondary.Charge("k"))
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if binding := d.Binding(); binding.Limit.Quota != 800 {
			t.Fatalf("take %d: %v binds, with %d left; want the limit of 800", i, binding.Limit, binding.Remaining)
		}
		c.Advance(10 * time.Millisecond)
	}
	if b.Stats().Local < 150 {
		t.Errorf("%+v; want most takes answered from leases", b.Stats())
	}
}
