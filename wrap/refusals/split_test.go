package refusals_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/wrap/refusals"
)

// Charges of several partitions, which the backend joins, are decided as by the backend
// itself: what is remembered of them ends with any of their counts.
func TestSeveralPartitions(t *testing.T) {
	account := &throttler.Policy{Name: "account", Limits: []throttler.Limit{{Quota: 3, Window: time.Minute}}}
	address := &throttler.Policy{Name: "address", Limits: []throttler.Limit{{Quota: 7, Window: 20 * time.Second}}}
	random := rand.New(rand.NewPCG(testseed.Of(t), 0))
	now := clock.NewManual(t0)
	b, err := refusals.New(memorybackend.NewDefault(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := driver.NewRequest(0, throttler.Charge{Policy: account, Partition: "a"}, throttler.Charge{Policy: address, Partition: "b"}); !driver.Joins(b, &r) {
		t.Fatal("a backend in front of one that joins partitions does not")
	}
	cached := throttler.New(b, &throttler.Options{Clock: now})
	plain := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: now})
	var taken [][2]throttler.Decision
	refused := 0
	for step := range 5000 {
		now.Advance(time.Duration(random.IntN(1500)) * time.Millisecond)
		if len(taken) > 0 && random.IntN(8) == 0 {
			last := random.IntN(len(taken))
			for i, th := range []*throttler.Throttler{cached, plain} {
				if _, err := th.Refund(t.Context(), taken[last][i]); err != nil {
					t.Fatal(err)
				}
			}
			taken = append(taken[:last], taken[last+1:]...)
			continue
		}
		charges := []throttler.Charge{account.Charge(fmt.Sprint(random.IntN(4))), address.Charge(fmt.Sprint(random.IntN(2)))}
		charges = charges[random.IntN(2):]
		got, err := cached.Take(t.Context(), charges...)
		if err != nil {
			t.Fatal(err)
		}
		want, err := plain.Take(t.Context(), charges...)
		if err != nil {
			t.Fatal(err)
		}
		if got.Allowed != want.Allowed {
			t.Fatalf("step %d: %v; want %v", step, &got, &want)
		}
		if got.Allowed {
			taken = append(taken, [2]throttler.Decision{got, want})
		} else {
			refused++
		}
	}
	if s := b.Stats(); s.Answered < int64(refused)/10 {
		t.Errorf("%d of %d refusals were answered from memory", s.Answered, refused)
	}
}
