package throttler_test

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var receiptOptions = throttler.Options{Clock: clock.NewManual(time.UnixMilli(1_900_000_000_000)), ReceiptKey: []byte("sixteen bytes...")}

// Open refuses a text that differs in one bit, or of another deployment. It contains no key.
func TestReceiptIsOurs(t *testing.T) {
	ctx := t.Context()
	backend := memorybackend.NewDefault()
	own := throttler.New(backend, &receiptOptions)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour}}}
	d, err := own.Take(ctx, p.Charge("alice@example.com"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := own.Receipt(d)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := own.Receipt(d); err != nil || again != text {
		t.Errorf("a second text is %q, %v, want the same", again, err)
	}
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || strings.Contains(string(sealed), "alice") || len(text) > 300 {
		t.Errorf("the text has %d bytes, %v: %q", len(text), err, sealed)
	}
	for i := range sealed {
		changed := append([]byte(nil), sealed...)
		changed[i] ^= 1
		if _, err := own.Open(base64.RawURLEncoding.EncodeToString(changed)); !errors.Is(err, throttler.ErrInvalid) {
			t.Fatalf("with byte %d changed: %v, want an error that wraps ErrInvalid", i, err)
		}
	}
	for name, bad := range map[string]string{"nothing": "", "longer": text + "AA", "no base64": "{" + text[1:], "of spaces": " " + text} {
		if _, err := own.Open(bad); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%s: %v, want an error that wraps ErrInvalid", name, err)
		}
	}
	for name, key := range map[string]string{"another key": "another deployment's", "no key": "", "a short key": "short"} {
		if _, err := throttler.New(backend, &throttler.Options{ReceiptKey: []byte(key)}).Open(text); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%s: %v, want an error that wraps ErrInvalid", name, err)
		}
	}
	if _, err := own.Open(text); err != nil {
		t.Error(err)
	}
}

// A decision has no receipt if it charged no shared count, or is settled.
func TestReceiptOfNothing(t *testing.T) {
	ctx := t.Context()
	own := throttler.New(memorybackend.NewDefault(), &receiptOptions)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	peeked, _ := own.Peek(ctx, p.Charge("alice"))
	allowed, _ := own.Take(ctx, p.Charge("alice"))
	refused, _ := own.Take(ctx, p.Charge("alice"))
	if _, err := own.Refund(ctx, allowed); err != nil {
		t.Fatal(err)
	}
	degraded, _ := own.Take(ctx, p.Charge("alice"))
	degraded.Degraded = true
	for name, d := range map[string]throttler.Decision{"a peek": peeked, "a refusal": refused, "refunded": allowed, "degraded": degraded, "none": {}} {
		if text, err := own.Receipt(d); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%s: %q, %v; want an error that wraps ErrInvalid", name, text, err)
		}
	}
}

// A receipt can't be settled after its windows: the record of a settlement may be gone.
func TestReceiptExpires(t *testing.T) {
	ctx := t.Context()
	c := clock.NewManual(time.UnixMilli(1_900_000_000_000))
	own := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c, ReceiptKey: receiptOptions.ReceiptKey})
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 10, Window: time.Minute}}}
	d, _ := own.Take(ctx, p.Charge("alice"))
	text, err := own.Receipt(d)
	if err != nil {
		t.Fatal(err)
	}
	c.Advance(time.Minute)
	opened, err := own.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Settle(ctx, opened, 7); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("after its window: %v, want an error that wraps ErrInvalid", err)
	}
	if d, _ := own.Peek(ctx, p.Charge("alice")); d.Limit(0).Used != 0 {
		t.Errorf("%d units are used", d.Limit(0).Used)
	}
}

// A settlement at the cost of the take counts as a settlement.
func TestReceiptOfTheSameCost(t *testing.T) {
	ctx := t.Context()
	own := throttler.New(memorybackend.NewDefault(), &receiptOptions)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour}}}
	d, _ := own.Take(ctx, throttler.Charge{Policy: p, Key: "alice", Cost: 3})
	text, err := own.Receipt(d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Settle(ctx, d, 3); err != nil {
		t.Fatal(err)
	}
	opened, err := own.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Refund(ctx, opened); !errors.Is(err, throttler.ErrSettled) {
		t.Errorf("a refund of what is settled at its cost: %v, want ErrSettled", err)
	}
}

// A decision with units in flight can have a receipt. The process that took it ends these units,
// even if it has renewed them, or another process has settled the rest.
func TestReceiptOfWhatIsInFlight(t *testing.T) {
	ctx := t.Context()
	for _, test := range []struct {
		name           string
		renewed, other bool // the other process settles first
	}{{"settled here", true, false}, {"settled by another", true, true}, {"and not renewed", false, true}} {
		t.Run(test.name, func(t *testing.T) {
			c := clock.NewManual(time.UnixMilli(1_900_000_000_000))
			options := &throttler.Options{Clock: c, ReceiptKey: receiptOptions.ReceiptKey}
			store := memorybackend.NewDefault()
			own, another := throttler.New(store, options), throttler.New(store, options)
			p := &throttler.Policy{Name: "both", Limits: []throttler.Limit{{Quota: 3, Window: 30 * time.Second, Algorithm: throttler.InFlight}, {Quota: 100, Window: 5 * time.Minute}}}
			charge := throttler.Charge{Policy: p, Key: "alice", Cost: 10}
			if d, err := own.Take(ctx, charge); err != nil || !d.Allowed { // another request, in the same millisecond
				t.Fatal(&d, err)
			}
			d, err := own.Take(ctx, charge)
			if err != nil {
				t.Fatal(err)
			}
			text, err := own.Receipt(d)
			if err != nil {
				t.Fatal(err)
			}
			if test.renewed {
				c.Advance(20 * time.Second)
				if d, err := own.Renew(ctx, d); err != nil || !d.Allowed {
					t.Fatal(&d, err)
				}
			}
			if test.other {
				opened, err := another.Open(text)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := another.Settle(ctx, opened, 4); err != nil {
					t.Fatal(err)
				}
				if _, err := own.Settle(ctx, d); !errors.Is(err, throttler.ErrSettled) {
					t.Errorf("what another has settled: %v, want ErrSettled", err)
				}
			} else if _, err := own.Settle(ctx, d, 4); err != nil {
				t.Fatal(err)
			}
			if d, err := own.Peek(ctx, charge); err != nil || d.Limit(0).Used != 1 || d.Limit(1).Used != 14 {
				t.Errorf("%d in flight, %d used, %v; want 1 and 14", d.Limit(0).Used, d.Limit(1).Used, err)
			}
		})
	}
	// In flight alone, for longer than a lease.
	c := clock.NewManual(time.UnixMilli(1_900_000_000_000))
	own := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c, ReceiptKey: receiptOptions.ReceiptKey})
	p := &throttler.Policy{Name: "held", Limits: []throttler.Limit{{Quota: 3, Window: 30 * time.Second, Algorithm: throttler.InFlight}}}
	d, err := own.Take(ctx, p.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Receipt(d); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c.Advance(20 * time.Second)
		if d, err := own.Renew(ctx, d); err != nil || !d.Allowed {
			t.Fatal(&d, err)
		}
	}
	if _, err := own.Settle(ctx, d); err != nil {
		t.Errorf("after two leases: %v", err)
	}
	if d, err := own.Peek(ctx, p.Charge("alice")); err != nil || d.Limit(0).Used != 0 {
		t.Errorf("%d in flight, %v", d.Limit(0).Used, err)
	}
}

// awayFor is a backend that is unavailable for settlements of one key.
type awayFor struct {
	driver.Backend
	key string
}

func (b awayFor) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if s.Charged.Charges()[0].Key == b.key {
		return driver.Decision{}, driver.ErrUnavailable
	}
	return b.Backend.Settle(ctx, s)
}

// If a settlement by another process did not reach all partitions, and this process settles the
// rest, nothing stays in flight in the partitions that were reached.
func TestReceiptOfWhatIsInFlightInSeveralPartitions(t *testing.T) {
	ctx := t.Context()
	options := &throttler.Options{Clock: clock.NewManual(time.UnixMilli(1_900_000_000_000)), ReceiptKey: receiptOptions.ReceiptKey}
	store := memorybackend.NewDefault()
	own, another := throttler.New(store, options), throttler.New(awayFor{store, "bob"}, options)
	p := &throttler.Policy{Name: "both", Limits: []throttler.Limit{{Quota: 3, Window: 30 * time.Second, Algorithm: throttler.InFlight}, {Quota: 100, Window: 5 * time.Minute}}}
	d, err := own.Take(ctx, p.Charge("alice"), p.Charge("bob"))
	if err != nil || !d.Allowed {
		t.Fatal(&d, err)
	}
	text, err := own.Receipt(d)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := another.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := another.Settle(ctx, opened, 4, 4); !errors.Is(err, throttler.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := own.Settle(ctx, d, 5, 5); err != nil {
		t.Fatal(err)
	}
	for key, used := range map[string]int64{"alice": 4, "bob": 5} {
		if d, err := own.Peek(ctx, p.Charge(key)); err != nil || d.Limit(0).Used != 0 || d.Limit(1).Used != used {
			t.Errorf("%s: %d in flight, %d used, %v; want 0 and %d", key, d.Limit(0).Used, d.Limit(1).Used, err, used)
		}
	}
}
