package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/backend/backendtest"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// apart hides that a backend joins partitions, so each is asked separately.
type apart struct{ driver.Backend }

func TestContractPartitionByPartition(t *testing.T) {
	backendtest.Run(t, func(*testing.T) driver.Backend { return apart{memorybackend.NewDefault()} })
}

var (
	accounts  = &throttler.Policy{Name: "accounts", Limits: []throttler.Limit{{Quota: 5, Window: time.Minute}}}
	addresses = &throttler.Policy{Name: "addresses", Limits: []throttler.Limit{{Quota: 20, Window: time.Minute}}}
)

// both runs test with a backend that joins partitions, and with one that does not.
func both(t *testing.T, test func(t *testing.T, b driver.Backend)) {
	t.Run("together", func(t *testing.T) { test(t, memorybackend.NewDefault()) })
	t.Run("apart", func(t *testing.T) { test(t, apart{memorybackend.NewDefault()}) })
}

func TestManyAccountsFromOneAddress(t *testing.T) {
	both(t, func(t *testing.T, b driver.Backend) {
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
		allowed := 0
		for i := range 300 {
			d, err := th.Take(t.Context(), accounts.Charge(fmt.Sprint("account", i)), addresses.Charge("home"))
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				allowed++
			}
		}
		if allowed != 20 {
			t.Errorf("one address tried %d of 300 accounts; want 20", allowed)
		}
		d, err := th.Peek(t.Context(), accounts.Charge("account299"))
		if err != nil || d.Limit(0).Used != 0 {
			t.Errorf("account299, never allowed, has used %d, %v; want 0", d.Limit(0).Used, err)
		}
	})
}

// A queue keeps the first place of a charge even if it is refunded. So a partition with queues
// comes last: a client that another partition refuses does not fill the queue.
func TestARefusedClientTakesNoPlaceInAQueue(t *testing.T) {
	queue := &throttler.Policy{Name: "queue", Limits: []throttler.Limit{{Quota: 6, Window: time.Minute, Algorithm: throttler.LeakyBucket, Burst: 1}}}
	both(t, func(t *testing.T, b driver.Backend) {
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
		if _, err := th.Take(t.Context(), throttler.Charge{Policy: addresses, Key: "home", Cost: 20}); err != nil {
			t.Fatal(err)
		}
		if d, err := th.Take(t.Context(), queue.Charge("alice"), addresses.Charge("home")); err != nil || d.Allowed {
			t.Errorf("home, which is used up: allowed %v, %v", d.Allowed, err)
		}
		if d, err := th.Take(t.Context(), queue.Charge("alice"), addresses.Charge("elsewhere")); err != nil || !d.Allowed {
			t.Errorf("alice, whose queue is empty: allowed %v, %v; want true", d.Allowed, err)
		}
	})
}

func TestUserBeforeOrganization(t *testing.T) {
	orgs := &throttler.Policy{Name: "orgs", Limits: []throttler.Limit{{Quota: 3, Window: time.Minute}}}
	both(t, func(t *testing.T, b driver.Backend) {
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
		allowed := 0
		for i := range 10 {
			d, err := th.Take(t.Context(), accounts.Charge(fmt.Sprint("user", i)).Within("acme"), orgs.Charge("acme"))
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				allowed++
			}
		}
		if allowed != 3 {
			t.Errorf("users of one organization took %d; want 3", allowed)
		}
	})
}

// Goroutines take from accounts and addresses, and refund half. No count ever exceeds its
// quota, and at the end each count is the number of takes without a refund.
func TestPartitionsAtOnce(t *testing.T) {
	both(t, func(t *testing.T, b driver.Backend) {
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
		var kept [2][4]atomic.Int64
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 200 {
					account, address := (g+i)%4, (g*i)%4
					charges := []throttler.Charge{accounts.Charge(fmt.Sprint(account)), addresses.Charge(fmt.Sprint(address))}
					if i%3 == 0 { // the other way round
						charges[0], charges[1] = charges[1], charges[0]
					}
					d, err := th.Take(context.Background(), charges...)
					switch {
					case err != nil:
						t.Error(err)
					case d.Allowed && i%2 == 0:
						if _, err := th.Refund(context.Background(), d); err != nil {
							t.Error(err)
						}
					case d.Allowed:
						kept[0][account].Add(1)
						kept[1][address].Add(1)
					}
				}
			})
		}
		wg.Wait()
		for i, p := range []*throttler.Policy{accounts, addresses} {
			for key := range kept[i] {
				d, err := th.Peek(t.Context(), p.Charge(fmt.Sprint(key)))
				if want := kept[i][key].Load(); err != nil || d.Limit(0).Used != want || want > p.Limits[0].Quota {
					t.Errorf("%s %d: used is %d, %v; %d were taken and kept, of %d", p.Name, key, d.Limit(0).Used, err, want, p.Limits[0].Quota)
				}
			}
		}
	})
}

// scripted fails calls about some keys.
type scripted struct {
	driver.Backend
	take, settle, peek map[string]error // by the key of the first charge
}

func (s *scripted) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if err := s.take[r.Charges()[0].Key]; err != nil {
		return driver.Decision{}, err
	}
	return s.Backend.Take(ctx, r)
}

func (s *scripted) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	if err := s.settle[st.Charged.Charges()[0].Key]; err != nil {
		return driver.Decision{}, err
	}
	return s.Backend.Settle(ctx, st)
}

func (s *scripted) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if err := s.peek[r.Charges()[0].Key]; err != nil {
		return driver.Decision{}, err
	}
	return s.Backend.Peek(ctx, r)
}

func TestPartitionFails(t *testing.T) {
	unsent := fmt.Errorf("down: %w: %w", driver.ErrUnavailable, driver.ErrNotSent)
	lost := fmt.Errorf("silent: %w", driver.ErrUnavailable)
	for _, test := range []struct {
		name        string
		b           scripted
		mayHave     bool
		usedAlice   int64
		failsClosed bool
	}{
		{"the second is down", scripted{take: map[string]error{"home": unsent}}, false, 0, false},
		{"the second is silent", scripted{take: map[string]error{"home": lost}}, true, 0, false},
		{"the second is down, then the first", scripted{take: map[string]error{"home": unsent}, settle: map[string]error{"alice": unsent}}, true, 1, false},
		{"the second fails closed", scripted{take: map[string]error{"home": errors.Join(unsent, driver.ErrFailClosed)}, settle: map[string]error{"alice": lost}}, true, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.b.Backend = apart{memorybackend.NewDefault()}
			th := throttler.New(&test.b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
			_, err := th.Take(t.Context(), accounts.Charge("alice"), addresses.Charge("home"))
			if !errors.Is(err, throttler.ErrUnavailable) || driver.MayHaveCharged(err) != test.mayHave || errors.Is(err, driver.ErrFailClosed) != test.failsClosed {
				t.Errorf("Take: %v; MayHaveCharged is %v, want %v", err, driver.MayHaveCharged(err), test.mayHave)
			}
			d, err := th.Peek(t.Context(), accounts.Charge("alice"))
			if err != nil || d.Limit(0).Used != test.usedAlice {
				t.Errorf("alice has used %d, %v; want %d", d.Limit(0).Used, err, test.usedAlice)
			}
		})
	}
}

// If a refund was not sent for one partition, but may have been for another, it is not made
// again, because the other might be refunded twice.
func TestRefundMayBeMade(t *testing.T) {
	unsent := fmt.Errorf("down: %w: %w", driver.ErrUnavailable, driver.ErrNotSent)
	lost := fmt.Errorf("silent: %w", driver.ErrUnavailable)
	for _, silent := range []string{"alice", "home"} {
		b := &scripted{Backend: apart{memorybackend.NewDefault()}, settle: map[string]error{"alice": unsent, "home": unsent}}
		b.settle[silent] = lost
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
		d, err := th.Take(t.Context(), accounts.Charge("alice"), addresses.Charge("home"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := th.Refund(t.Context(), d); !driver.MayHaveCharged(err) {
			t.Errorf("%s is silent: %v; want an error that leaves open what was given back", silent, err)
		}
		b.settle = nil
		if _, err := th.Refund(t.Context(), d); err != nil {
			t.Error(err)
		}
		for _, c := range d.Charges() {
			if now, err := th.Peek(t.Context(), c); err != nil || now.Limit(0).Used != 1 {
				t.Errorf("%s is silent: %s has used %d, %v; want 1, by one refund at most", silent, c.Key, now.Limit(0).Used, err)
			}
		}
	}
}

// A refusal holds although other partitions can't be refunded or don't answer.
func TestRefusalHoldsWithoutTheOthers(t *testing.T) {
	down := fmt.Errorf("down: %w", driver.ErrUnavailable)
	b := &scripted{
		Backend: apart{memorybackend.NewDefault()},
		settle:  map[string]error{"alice": down},
		peek:    map[string]error{"last": down},
	}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
	d, err := th.Take(t.Context(), accounts.Charge("alice"), throttler.Charge{Policy: addresses, Key: "home", Cost: 21}, accounts.Charge("last"))
	if err != nil || d.Allowed || !d.Degraded || !d.RetryAt().Equal(decision.Never) {
		t.Errorf("got %v, allowed %v, degraded %v, retry at %v; want a degraded refusal for ever", err, d.Allowed, d.Degraded, d.RetryAt())
	}
	if last := d.Limit(2); last.Used != 0 || !last.ResetAt.Equal(d.At()) {
		t.Errorf("of what was not read: %+v; want no window", last)
	}
}

// If one partition is down, and a later one has no room, the decision is a refusal, not an
// error: an application may serve requests despite an error.
func TestRefusalBehindAnOutage(t *testing.T) {
	down := fmt.Errorf("down: %w", driver.ErrUnavailable)
	b := &scripted{Backend: apart{memorybackend.NewDefault()}, take: map[string]error{"alice": down}}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
	if _, err := th.Take(t.Context(), throttler.Charge{Policy: addresses, Key: "home", Cost: 20}); err != nil {
		t.Fatal(err)
	}
	d, err := th.Take(t.Context(), accounts.Charge("alice"), addresses.Charge("home"))
	if err != nil || d.Allowed || !d.Degraded {
		t.Errorf("got %v, allowed %v, degraded %v; want a degraded refusal", err, d.Allowed, d.Degraded)
	}
	if d, err = th.Take(t.Context(), accounts.Charge("alice"), addresses.Charge("office")); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("got %v, allowed %v; want an error: nothing refuses", err, d.Allowed)
	}
	b.peek = b.take
	for _, charges := range [][]throttler.Charge{
		{accounts.Charge("alice"), addresses.Charge("home")},
		{addresses.Charge("home"), accounts.Charge("alice")},
	} {
		if d, err = th.Peek(t.Context(), charges...); err != nil || d.Allowed || !d.Degraded {
			t.Errorf("a peek: got %v, allowed %v, degraded %v; want a degraded refusal", err, d.Allowed, d.Degraded)
		}
	}
	if d, err = th.Peek(t.Context(), accounts.Charge("alice"), addresses.Charge("office")); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("a peek: got %v, allowed %v; want an error: nothing refuses", err, d.Allowed)
	}
}

// lastSettled receives the last event of a settlement.
type lastSettled struct {
	observe.Nothing
	err error
}

func (o *lastSettled) Decided(_ context.Context, e observe.Decided) {
	if e.Op == observe.OpSettle {
		o.err = e.Err
	}
}

// The observer receives the failed refund of a partition, after another one refused.
func TestLostRefundIsObserved(t *testing.T) {
	down := fmt.Errorf("down: %w", driver.ErrUnavailable)
	b := &scripted{Backend: apart{memorybackend.NewDefault()}, settle: map[string]error{"alice": down}}
	var o lastSettled
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0)), Observer: &o})
	d := take(t, th, accounts.Charge("alice"), throttler.Charge{Policy: addresses, Key: "home", Cost: 21})
	if d.Allowed || !errors.Is(o.err, driver.ErrUnavailable) {
		t.Errorf("allowed %v, observed %v; want a refusal, and the failure of a refund", d.Allowed, o.err)
	}
}

// If one partition is allowed without its counts, as in an outage, the decision has no limits.
// Another partition still refuses.
func TestPartitionOpen(t *testing.T) {
	b := &openFor{Backend: apart{memorybackend.NewDefault()}, key: "alice"}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
	d, err := th.Take(t.Context(), accounts.Charge("alice"), addresses.Charge("home"))
	if err != nil || !d.Allowed || !d.Degraded || d.NumLimits() != 0 {
		t.Errorf("got %v, allowed %v, degraded %v, %d limits; want an open decision", err, d.Allowed, d.Degraded, d.NumLimits())
	}
	if _, err := th.Refund(t.Context(), d); err != nil {
		t.Error(err)
	}
	if d, err = th.Take(t.Context(), accounts.Charge("alice"), throttler.Charge{Policy: addresses, Key: "home", Cost: 20}); err != nil || d.Allowed {
		t.Errorf("got %v, allowed %v; want a refusal: home has used 1 of 20", err, d.Allowed)
	}
}

// A charge that is allowed without the counts of one partition is not in flight in others. Its
// settlement would not end it there, and others would be refused until the lease lapses.
func TestPartitionOpenInFlight(t *testing.T) {
	b := &openFor{Backend: apart{memorybackend.NewDefault()}, key: "alice"}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
	both := policy("both", per(5, time.Hour), throttler.Limit{Quota: 1, Window: time.Minute, Algorithm: throttler.InFlight})
	for i := range 3 {
		d := take(t, th, both.Charge("home"), accounts.Charge("alice"))
		if !d.Allowed || !d.Degraded {
			t.Errorf("take %d: %v; want an open decision", i, d)
		}
		if _, err := th.Settle(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
	if d, err := th.Peek(t.Context(), both.Charge("home")); err != nil || d.Limit(0).Used != 3 || d.Limit(1).Used != 0 {
		t.Errorf("%v, %v; want 3 charged, and none in flight", d, err)
	}
}

// openFor allows charges for one key without counts.
type openFor struct {
	driver.Backend
	key string
}

func (b *openFor) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if r.Charges()[0].Key != b.key {
		return b.Backend.Take(ctx, r)
	}
	d := driver.NewDecision(driver.NewRequest(r.Now))
	d.Allowed, d.Degraded = true, true
	return d, nil
}

// slow settles after a while, unless its context ends first.
type slow struct {
	driver.Backend
	after time.Duration
}

func (s *slow) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	select {
	case <-time.After(s.after):
		return s.Backend.Settle(ctx, st)
	case <-ctx.Done():
		return driver.Decision{}, ctx.Err()
	}
}

// Charges are refunded even if the caller's time ends first, and the caller doesn't wait for
// the refund.
func TestLateGiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(&slow{apart{memorybackend.NewDefault()}, 500 * time.Millisecond}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		d, err := th.Take(ctx, accounts.Charge("alice"), throttler.Charge{Policy: addresses, Key: "home", Cost: 21})
		if took := time.Since(began); err != nil || d.Allowed || took != 50*time.Millisecond {
			t.Errorf("%v, allowed %v, after %v; want a refusal when the deadline comes", err, d.Allowed, took)
		}
		time.Sleep(time.Second)
		if d, err := th.Peek(t.Context(), accounts.Charge("alice")); err != nil || d.Limit(0).Used != 0 {
			t.Errorf("alice has used %d, %v; want 0", d.Limit(0).Used, err)
		}
	})
}
