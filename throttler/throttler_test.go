package throttler_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

var t0 = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func policy(name string, limits ...throttler.Limit) *throttler.Policy {
	return &throttler.Policy{Name: name, Limits: limits}
}

func per(quota int64, window time.Duration) throttler.Limit {
	return throttler.Limit{Quota: quota, Window: window}
}

func newThrottler() *throttler.Throttler {
	return throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(t0)})
}

func TestTakeValidatesPolicies(t *testing.T) {
	th := newThrottler()
	wrong := policy("a b", per(1, time.Second))
	if _, err := th.Take(t.Context(), wrong.Charge("k")); err == nil || err.Error() != wrong.Validate().Error() {
		t.Errorf("Take says %v, Validate %v", err, wrong.Validate())
	}
}

func TestBadChargesSayWhatIsWrong(t *testing.T) {
	p, q := policy("p", per(5, time.Second)), policy("q", per(5, time.Second))
	stricter := policy("p", per(4, time.Second))
	for _, test := range []struct {
		charges []throttler.Charge
		want    string
	}{
		{nil, "no charges"},
		{make([]throttler.Charge, 17), "17 charges; a decision can have at most 16"},
		{[]throttler.Charge{{Policy: p, Key: "k", Cost: -1}}, `charge 0, policy "p": cost is -1; it must be from 1 to`},
		{[]throttler.Charge{p.Charge("k"), {Policy: q, Key: "k", Cost: 1<<53 + 1}}, `charge 1, policy "q": cost is 9007199254740993`},
		{[]throttler.Charge{p.Charge("k"), q.Charge("k"), stricter.Charge("k")}, `charge 2 is for the same key and policy name, "p", as an earlier one, under other limits`},
		{[]throttler.Charge{{Policy: p, Key: "k", Cost: 1 << 53}, p.Charge("k")}, `charge 1, policy "p": the costs for its key add up to 9007199254740993`},
	} {
		th := newThrottler()
		_, err := th.Take(t.Context(), test.charges...)
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v\nwant an ErrInvalid with %q", err, test.want)
		}
	}
}

func TestAChargeWithoutACostCosts1(t *testing.T) {
	th := newThrottler()
	p := policy("p", per(1, time.Minute))
	zero := throttler.Charge{Policy: p, Key: "k"}
	if d, err := th.Peek(t.Context(), zero); err != nil || !d.Allowed || d.Charges()[0].Cost != 1 {
		t.Errorf("peek: %+v, error %v; want a peek at cost 1", d, err)
	}
	if d, err := th.Take(t.Context(), zero); err != nil || !d.Allowed || d.Limit(0).Used != 1 || d.Charges()[0].Cost != 1 {
		t.Errorf("take: %+v, error %v; want used 1", d, err)
	}
	if d, _ := th.Take(t.Context(), zero); d.Allowed {
		t.Error("the quota of 1 is used up, and a charge without a cost was allowed")
	}
	if d, _ := th.Peek(t.Context(), zero); d.Allowed {
		t.Error("the quota of 1 is used up, and a peek without a cost was allowed")
	}
}

func TestChargesToOneCountAddUp(t *testing.T) {
	th := newThrottler()
	p := policy("p", per(5, time.Minute))
	again := policy("p", per(5, time.Minute)) // the same limits, loaded twice
	d, err := th.Take(t.Context(), p.Charge("k"), p.Charge("other"), throttler.Charge{Policy: again, Key: "k", Cost: 2})
	if err != nil || len(d.Charges()) != 2 || d.Charges()[0].Cost != 3 || d.Limit(0).Used != 3 || d.Limit(1).Used != 1 {
		t.Fatalf("%+v, error %v; want 3 for k and 1 for other", d, err)
	}
	if after, err := th.Settle(t.Context(), d, 1, 1); err != nil || after.Limit(0).Used != 1 {
		t.Errorf("settled to 1: %+v, error %v", after, err)
	}
	if d, _ := th.Take(t.Context(), throttler.Charge{Policy: p, Key: "k", Cost: 3}, throttler.Charge{Policy: p, Key: "k", Cost: 3}); d.Allowed {
		t.Error("3 and 3 were allowed where 4 are left")
	}
}

// A decision from another process, or decoded from JSON, has lost its receipt. A refund
// without an error would leave the charge for good.
func TestADecisionWithoutItsReceiptIsNoReceipt(t *testing.T) {
	th := newThrottler()
	p := policy("p", per(1, time.Minute))
	travel := func(d throttler.Decision) (arrived throttler.Decision) {
		t.Helper()
		text, err := json.Marshal(d)
		if err == nil {
			err = json.Unmarshal(text, &arrived)
		}
		if err != nil {
			t.Fatal(err)
		}
		return arrived
	}
	taken, _ := th.Take(t.Context(), p.Charge("k"))
	if _, err := th.Refund(t.Context(), travel(taken)); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "no receipt") {
		t.Errorf("refund: %v; want an ErrInvalid that speaks of the receipt", err)
	}
	if _, err := th.Settle(t.Context(), travel(taken), 0); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("settle: %v; want an ErrInvalid", err)
	}
	if _, err := th.Refund(t.Context(), throttler.Decision{Decision: taken.Decision}); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("refund of what was decided alone: %v; want an ErrInvalid", err)
	}
	refused, _ := th.Take(t.Context(), p.Charge("k"))
	if _, err := th.Refund(t.Context(), travel(refused)); err != nil {
		t.Errorf("refund of a refusal: %v; it took nothing, so there is nothing to lose", err)
	}
	after, err := th.Refund(t.Context(), taken)
	if err != nil || after.Limit(0).Used != 0 {
		t.Errorf("refund of the decision itself: %+v, %v", after, err)
	}
	if _, err := th.Refund(t.Context(), after); err != nil {
		t.Errorf("refund of what Refund returned: %v; want nothing to happen", err)
	}
}

func TestCostAboveTheQuotaNeverFits(t *testing.T) {
	th := newThrottler()
	d, err := th.Take(t.Context(), throttler.Charge{Policy: policy("p", per(5, time.Minute)), Key: "k", Cost: 6})
	if err != nil || d.Allowed || !d.RetryAt().Equal(decision.Never) {
		t.Errorf("allowed %v, retry at %v, error %v; want a refusal for ever", d.Allowed, d.RetryAt(), err)
	}
}

func TestRefundAndSettleWorkOnce(t *testing.T) {
	th := newThrottler()
	p := policy("p", per(10, time.Minute))
	used := func() int64 {
		t.Helper()
		d, err := th.Peek(t.Context(), p.Charge("k"))
		if err != nil {
			t.Fatal(err)
		}
		return d.Limit(0).Used
	}
	_, _ = th.Take(t.Context(), p.Charge("k"))
	d, _ := th.Take(t.Context(), throttler.Charge{Policy: p, Key: "k", Cost: 4})
	copied := d
	cancelled, cancel := context.WithCancel(t.Context())
	cancel() // as a request's context often is by then
	after, err := th.Refund(cancelled, d)
	if err != nil || after.Limit(0).Used != 1 || used() != 1 {
		t.Errorf("refund: used %d, then %d, error %v; want 1", after.Limit(0).Used, used(), err)
	}
	if _, err := th.Refund(t.Context(), copied); err != nil || used() != 1 {
		t.Errorf("a second refund, of a copy: used %d, error %v; want 1", used(), err)
	}
	if _, err := th.Settle(t.Context(), d, 9); err != nil || used() != 1 {
		t.Errorf("a settle after a refund: used %d, error %v; want 1", used(), err)
	}
	if _, err := th.Settle(t.Context(), d, 1, 1); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("settle with two costs: %v", err)
	}
	if after, err := th.Settle(t.Context(), d); err != nil || after.At() != d.At() || used() != 1 {
		t.Errorf("a settle without a cost after a refund: %v, %v", after, err)
	}
	if _, err := th.Settle(t.Context(), d, -1); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "real cost is -1") {
		t.Errorf("settle to -1: %v", err)
	}
	refused, _ := th.Take(t.Context(), throttler.Charge{Policy: p, Key: "k", Cost: 10})
	if _, err := th.Refund(t.Context(), refused); err != nil || used() != 1 {
		t.Errorf("a refund of what was refused: used %d, error %v; want 1", used(), err)
	}
	peeked, _ := th.Peek(t.Context(), p.Charge("k"))
	for what, d := range map[string]throttler.Decision{"a peek": peeked, "what a refund returned": after} {
		if _, err := th.Settle(t.Context(), d, 9); err != nil || used() != 1 {
			t.Errorf("a settlement of %s: used %d, error %v; want 1", what, used(), err)
		}
	}
	if _, err := th.Refund(t.Context(), peeked); err != nil || used() != 1 {
		t.Errorf("a refund of a peek: used %d, error %v; want 1", used(), err)
	}
}

func TestTakeLeavesTheCallersChargesAlone(t *testing.T) {
	th := newThrottler()
	charges := []throttler.Charge{policy("org", per(5, time.Minute)).Charge("acme"), policy("user", per(5, time.Minute)).Charge("alice")}
	before := slices.Clone(charges)
	d, err := th.Take(t.Context(), charges...)
	if err != nil || !slices.Equal(charges, before) {
		t.Errorf("charges are now %+v, error %v", charges, err)
	}
	if d.Charges()[1].Partition != "alice" {
		t.Errorf("alice's partition is %q, want her own", d.Charges()[1].Partition)
	}
}

func TestClocksOutOfRange(t *testing.T) {
	p := policy("p", per(5, time.Minute))
	for _, at := range []time.Time{time.Date(1901, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(12_000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(at)})
		if d, err := th.Take(t.Context(), p.Charge("k")); err != nil || !d.Allowed {
			t.Errorf("at %v: allowed %v, error %v", at, d.Allowed, err)
		}
	}
}

// refusing embeds a Backend and overrides Take.
type refusing struct{ *memorybackend.Backend }

func (refusing) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	return driver.NewDecision(r), nil
}

func TestTakeOfAnEmbeddingBackendIsNotBypassed(t *testing.T) {
	shared := memorybackend.NewDefault()
	charge := policy("p", per(9, time.Hour)).Charge("alice")
	if d, err := throttler.New(shared, nil).Take(t.Context(), charge); err != nil || !d.Allowed {
		t.Fatalf("%v, %v", d, err)
	}
	if d, err := throttler.New(refusing{shared}, nil).Take(t.Context(), charge); err != nil || d.Allowed {
		t.Errorf("%v, %v; want what the backend's own Take says", d, err)
	}
}

// failing is a Backend whose settlements fail.
type failing struct {
	*memorybackend.Backend
	err     error
	settled int
}

func (f *failing) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	f.settled++
	if f.err != nil {
		return driver.Decision{}, f.err
	}
	return f.Backend.Settle(ctx, s)
}

func TestRefundThatWasNotSentCanBeMadeAgain(t *testing.T) {
	unavailable := &driver.UnavailableError{Backend: "b", Shard: "s", Err: errors.New("timeout")}
	for _, test := range []struct {
		err   error
		again bool
	}{
		{unavailable, false},
		{&driver.UnavailableError{Backend: "b", Shard: "s", Err: driver.ErrNotSent}, true},
		{context.Canceled, true},
		{errors.Join(unavailable, context.Canceled), false},
	} {
		b := &failing{Backend: memorybackend.NewDefault(), err: test.err}
		th := throttler.New(b, nil)
		p := policy("p", per(5, time.Hour))
		d, err := th.Take(t.Context(), p.Charge("k"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := th.Refund(t.Context(), d); !errors.Is(err, test.err) || driver.MayHaveCharged(err) == test.again {
			t.Errorf("%v: %v, may have charged: %t", test.err, err, driver.MayHaveCharged(err))
		}
		b.err = nil
		for range 2 {
			if _, err := th.Refund(t.Context(), d); err != nil {
				t.Errorf("after %v: %v", test.err, err)
			}
		}
		want := 1
		if test.again {
			want = 2
		}
		if b.settled != want {
			t.Errorf("after %v: %d refunds were sent, want %d", test.err, b.settled, want)
		}
	}
}
