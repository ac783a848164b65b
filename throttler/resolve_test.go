package throttler_test

import (
	"errors"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
)

// withTable returns a throttler over memory with a table, and a function that edits the table.
func withTable(t *testing.T) (*throttler.Throttler, *clock.Manual, func(func(*policies.Edit))) {
	table, c := new(policies.Table), clock.NewManual(t0)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c, Policies: table})
	return th, c, func(change func(*policies.Edit)) {
		t.Helper()
		if err := table.Source("code").Edit(change); err != nil {
			t.Fatal(err)
		}
	}
}

// override returns an override of policy for the key k, without an effect yet.
func override(policy string) policies.Override {
	return policies.Override{Policy: policy, Key: "k"}
}

func take(t *testing.T, th *throttler.Throttler, charges ...throttler.Charge) throttler.Decision {
	t.Helper()
	d, err := th.Take(t.Context(), charges...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A count continues when limits change, and when an override is added or removed.
func TestCountsGoOnUnderOtherLimits(t *testing.T) {
	th, _, edit := withTable(t)
	p := policy("p", per(3, time.Hour))
	use := func(allowed bool, used, quota int64) {
		t.Helper()
		peek, err := th.Peek(t.Context(), p.Charge("k"))
		d := take(t, th, p.Charge("k"))
		if err != nil || peek.Allowed != allowed || d.Allowed != allowed || d.Limit(0).Used != used || d.Limit(0).Limit.Quota != quota {
			t.Errorf("%v, %v, quota %d; want allowed %t, used %d of %d", d, err, d.Limit(0).Limit.Quota, allowed, used, quota)
		}
	}
	use(true, 1, 3)
	edit(func(e *policies.Edit) { e.Set(policy("p", per(2, time.Hour))) })
	use(true, 2, 2)
	use(false, 2, 2)
	edit(func(e *policies.Edit) { e.Set(policy("p", per(4, time.Hour))) })
	use(true, 3, 4)
	o := override("p")
	o.Limits = []throttler.Limit{per(10, time.Hour)}
	edit(func(e *policies.Edit) { e.Override(o) })
	use(true, 4, 10)
	use(true, 5, 10)
	edit(func(e *policies.Edit) { e.RemoveOverride("p", "k") })
	use(false, 5, 4)
	o = override("p")
	o.Unlimited = true
	edit(func(e *policies.Edit) { e.Override(o) })
	use(true, 6, 1<<53)
	edit(func(e *policies.Edit) { e.Clear() })
	use(false, 6, 3)
}

func TestBlockedKeys(t *testing.T) {
	th, c, edit := withTable(t)
	p, q := policy("p", per(3, time.Hour), per(2, time.Minute)), policy("q", per(3, time.Hour))
	_ = take(t, th, p.Charge("k"))
	o := override("p")
	o.Blocked, o.Until = true, t0.Add(90*time.Second)
	forever := override("q")
	forever.Blocked = true
	edit(func(e *policies.Edit) { e.Override(o); e.Override(forever) })
	d := take(t, th, p.Charge("k"))
	s := d.Binding()
	if d.Allowed || !d.Blocked || !d.RetryAt().Equal(o.Until) || d.NumLimits() != 2 || s.Remaining != 0 || !s.Reset().Equal(o.Until) || s.Cost != 1 {
		t.Errorf("%v, %+v; want a block until %v", d, s, o.Until)
	}
	if after, err := th.Refund(t.Context(), d); err != nil || after.Allowed {
		t.Errorf("a refund of a block: %v, %v", after, err)
	}
	if d := take(t, th, q.Charge("k")); d.Allowed || !d.Blocked || !d.RetryAt().Equal(decision.Never) {
		t.Errorf("%v; want a block for ever", d)
	}
	for _, charges := range [][]throttler.Charge{
		{p.Charge("k"), q.Charge("other")},
		{q.Charge("other"), {Policy: p, Key: "k", Cost: 3}},
		{q.Charge("k"), p.Charge("k")},
	} {
		peek, err := th.Peek(t.Context(), charges...)
		d := take(t, th, charges...)
		if err != nil || d.Allowed || peek.Allowed || !d.Blocked || !peek.Blocked {
			t.Errorf("%v, %v, %v; want a block", d, peek, err)
		}
	}
	if d := take(t, th, q.Charge("other")); d.Limit(0).Used != 1 {
		t.Errorf("%v; a block next to it charged it", d)
	}
	c.Set(o.Until)
	if d := take(t, th, p.Charge("k")); !d.Allowed || d.Blocked || d.Limit(0).Used != 2 {
		t.Errorf("%v; want the count of before the block, and 1", d)
	}
	if d, err := th.Take(t.Context(), throttler.Charge{Policy: q, Key: "k", Cost: -1}); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("%v, %v; a bad cost is an error for a blocked key, too", d, err)
	}
	if d, err := th.Take(t.Context(), p.Charge("other"), throttler.Charge{Policy: q, Key: "k", Cost: -1}); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("%v, %v; a bad cost is an error for a blocked key, too", d, err)
	}
}

// With Unlimited, buckets and logs are not charged, but windows count.
func TestUnlimitedKeys(t *testing.T) {
	th, _, edit := withTable(t)
	bucket := policy("bucket", throttler.Limit{Quota: 1, Window: time.Hour, Algorithm: throttler.TokenBucket})
	window := policy("window", per(1, time.Hour))
	both := policy("both", window.Limits[0], bucket.Limits[0])
	all := []*throttler.Policy{bucket, window, both}
	for _, p := range all {
		_ = take(t, th, p.Charge("k"))
	}
	edit(func(e *policies.Edit) {
		for _, p := range all {
			o := override(p.Name)
			o.Unlimited = true
			e.Override(o)
		}
	})
	for range 3 {
		d := take(t, th, bucket.Charge("k"))
		if !d.Allowed || d.NumLimits() != 0 {
			t.Errorf("%v; want a decision about nothing", d)
		}
		if after, err := th.Refund(t.Context(), d); err != nil || !after.Allowed {
			t.Errorf("its refund: %v, %v", after, err)
		}
		d = take(t, th, bucket.Charge("k"), window.Charge("k"), both.Charge("k"))
		if !d.Allowed || d.NumLimits() != 2 {
			t.Errorf("%v; want the windows alone", d)
		}
	}
	if d := take(t, th, bucket.Charge("k"), policy("org", per(9, time.Hour)).Charge("acme")); !d.Allowed || d.NumLimits() != 1 || d.Charges()[0].Partition != "acme" {
		t.Errorf("%v of %+v; want the org's limit alone", d, d.Charges())
	}
	edit(func(e *policies.Edit) { e.Clear() })
	for _, p := range all {
		d, err := th.Peek(t.Context(), p.Charge("k"))
		want := int64(4)
		if p == bucket {
			want = 1
		}
		if err != nil || d.Allowed || d.Limit(0).Used != want {
			t.Errorf("%s: %v, %v; want used %d", p.Name, d, err, want)
		}
	}
}

// A program may use a policy without limits if the table has them.
func TestPoliciesOfTheTableAlone(t *testing.T) {
	th, _, edit := withTable(t)
	named := policy("plan")
	if d, err := th.Take(t.Context(), named.Charge("k")); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("%v, %v; no one has limits", d, err)
	}
	if _, err := th.Take(t.Context(), throttler.Charge{Key: "k"}); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("a charge without a policy: %v", err)
	}
	if _, err := th.Take(t.Context(), throttler.Charge{Key: "k"}, named.Charge("k")); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("a charge without a policy: %v", err)
	}
	edit(func(e *policies.Edit) { e.Set(policy("plan", per(3, time.Hour))) })
	if d := take(t, th, named.Charge("k"), policy("plan", per(9, time.Hour)).Charge("k")); !d.Allowed || d.NumLimits() != 1 || d.Limit(0).Used != 2 || d.Limit(0).Limit.Quota != 3 {
		t.Errorf("%v", d)
	}
	o := override("gone")
	o.Blocked = true
	edit(func(e *policies.Edit) { e.Override(o) })
	if d := take(t, th, policy("gone").Charge("k")); d.Allowed || !d.RetryAt().Equal(decision.Never) {
		t.Errorf("%v; want a block of a policy without limits", d)
	}
}

// A settlement refunds under the limits that the take was charged under.
func TestRefundsAfterAChange(t *testing.T) {
	th, _, edit := withTable(t)
	p := policy("p", per(5, time.Hour))
	d := take(t, th, throttler.Charge{Policy: p, Key: "k", Cost: 4})
	edit(func(e *policies.Edit) { e.Set(policy("p", per(2, time.Hour))) })
	if _, err := th.Settle(t.Context(), d, 1); err != nil {
		t.Fatal(err)
	}
	if d := take(t, th, p.Charge("k")); !d.Allowed || d.Limit(0).Used != 2 || d.Limit(0).Limit.Quota != 2 {
		t.Errorf("%v; want 2 of 2", d)
	}
}

// A program settles all its charges, and need not know which of them the table has left out.
func TestWhatIsLeftOutIsSettledWithTheRest(t *testing.T) {
	requests, user := policy("requests", per(100, time.Hour)), policy("user", per(1000, time.Hour))
	org := policy("org", throttler.Limit{Quota: 1000, Window: time.Hour, Algorithm: throttler.TokenBucket})
	charges := []throttler.Charge{requests.Charge("k"), {Policy: org, Key: "k", Cost: 500}, {Policy: user, Key: "alice", Cost: 500}}
	both(t, func(t *testing.T, b driver.Backend) {
		table := new(policies.Table)
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0), Policies: table, ReceiptKey: receiptKey})
		edit := func(o policies.Override) {
			t.Helper()
			if err := table.Source("code").Edit(func(e *policies.Edit) { e.Override(o) }); err != nil {
				t.Fatal(err)
			}
		}
		edit(policies.Override{Policy: "org", Key: "k", Unlimited: true})
		d := take(t, th, charges...)
		if after, err := th.Settle(t.Context(), d, 1, 37, 37); err != nil || len(d.Charges()) != 2 || after.Limit(0).Used != 1 || after.Limit(1).Used != 37 {
			t.Errorf("%v, %v; want 1 request, and 37 of the user", after, err)
		}
		text, err := th.Receipt(take(t, th, charges...))
		if err != nil {
			t.Fatal(err)
		}
		opened, err := th.Open(text)
		if err != nil {
			t.Fatal(err)
		}
		if after, err := th.Settle(t.Context(), opened, 1, 40, 40); err != nil || after.Limit(0).Used != 2 || after.Limit(1).Used != 77 {
			t.Errorf("by its receipt: %v, %v; want 2 requests, and 77 of the user", after, err)
		}
		if _, err := th.Settle(t.Context(), take(t, th, charges...), 1, 1<<53+1, 37); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("a cost that no charge may have: %v", err)
		}
		d = take(t, th, charges[1])
		if after, err := th.Settle(t.Context(), d, 37); err != nil || !after.Allowed || len(after.Charges()) != 0 {
			t.Errorf("alone: %v, %v", after, err)
		}
		edit(policies.Override{Policy: "org", Key: "k", Blocked: true})
		if after, err := th.Settle(t.Context(), take(t, th, charges...), 1, 37, 37); err != nil || !after.Blocked {
			t.Errorf("blocked: %v, %v", after, err)
		}
	})
}

// A reset of an unlimited key clears all counts of its policy, even if they aren't charged now.
func TestResetOfAnUnlimitedKey(t *testing.T) {
	th, _, edit := withTable(t)
	log := throttler.Limit{Quota: 2, Window: time.Hour, Algorithm: throttler.SlidingLog}
	for _, limits := range [][]throttler.Limit{{log}, {per(2, time.Minute), log}} {
		p := policy("p") // its limits are in the table
		edit(func(e *policies.Edit) { e.Set(policy("p", limits...)) })
		take(t, th, p.Charge("k"))
		edit(func(e *policies.Edit) { e.Override(policies.Override{Policy: "p", Key: "k", Unlimited: true}) })
		if err := th.Reset(t.Context(), p.Charge("k")); err != nil {
			t.Error(err)
		}
		edit(func(e *policies.Edit) { e.RemoveOverride("p", "k") })
		d, err := th.Peek(t.Context(), p.Charge("k"))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range d.Limits() {
			if s.Used != 0 {
				t.Errorf("%v after the reset", d)
			}
		}
	}
}
