package refusals_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// apart is a backend that does not join partitions, and counts its calls.
type apart struct {
	driver.Backend
	takes, settles, peeks int
}

func (a *apart) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	a.takes++
	return a.Backend.Take(ctx, r)
}

func (a *apart) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	a.settles++
	return a.Backend.Settle(ctx, s)
}

func (a *apart) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	a.peeks++
	return a.Backend.Peek(ctx, r)
}

// A request from an exhausted address never charges the account, in either order of the
// charges: other processes would refuse the account's own requests, and remember that.
func TestARememberedRefusalChargesNoOtherPartition(t *testing.T) {
	account := &throttler.Policy{Name: "account", Limits: []throttler.Limit{{Quota: 1, Window: time.Minute}}}
	address := &throttler.Policy{Name: "address", Limits: []throttler.Limit{{Quota: 7, Window: 20 * time.Second}}}
	counts := &apart{Backend: memorybackend.NewDefault()}
	cache, err := refusals.New(counts, nil)
	if err != nil {
		t.Fatal(err)
	}
	table, err := consistency.NewTable(nil)
	if err != nil {
		t.Fatal(err)
	}
	inStore, err := consistency.New(cache, nil, table)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]driver.Backend{"the cache": cache, "modes in front of it": inStore} {
		t.Run(name, func(t *testing.T) {
			now := clock.NewManual(t0)
			th := throttler.New(b, &throttler.Options{Clock: now})
			take := func(want bool, charges ...throttler.Charge) throttler.Decision {
				t.Helper()
				d, err := th.Take(t.Context(), charges...)
				if err != nil || d.Allowed != want {
					t.Fatalf("%v, %v; want allowed %t", &d, err, want)
				}
				return d
			}
			alice, home := account.Charge("alice "+name), address.Charge("home "+name)
			take(true, throttler.Charge{Policy: address, Key: home.Key, Cost: 7})
			take(false, alice, home) // alice is charged and refunded, and the refusal is remembered
			counts.takes, counts.settles, counts.peeks = 0, 0, 0
			for range 100 {
				d := take(false, alice, home)
				if d.Limit(0).Refused || d.Limit(0).Used != 0 || !d.Limit(1).Refused || !d.RetryAt().Equal(t0.Add(20*time.Second)) {
					t.Fatalf("%v; want home to refuse for 20 s, and alice unused", &d)
				}
			}
			if counts.takes != 0 || counts.settles != 0 || counts.peeks != 100 {
				t.Errorf("%d takes, %d settlements and %d peeks; want 100 peeks at alice", counts.takes, counts.settles, counts.peeks)
			}
			take(true, alice)
			if d := take(false, alice, home); !d.Limit(0).Refused || !d.RetryAt().Equal(t0.Add(time.Minute)) {
				t.Errorf("%v; want both to refuse, for a minute", &d)
			}
			now.Advance(time.Minute)
			take(true, alice, home)
		})
	}
}

// Charges of several partitions, which the backend joins, are decided as by the backend itself:
// a remembered refusal ends with any of their counts.
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
