package throttler_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

var receiptOptions = throttler.Options{Clock: clock.NewManual(time.UnixMilli(1_900_000_000_000)), ReceiptKey: []byte("sixteen bytes...")}

// A text that differs in one bit, or of another deployment, is none. No key is in it.
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

// What took nothing that is shared has no receipt, nor has what is settled.
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

// A receipt whose windows have ended settles nothing: nothing may remember that it did.
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

// A settlement at the cost that was taken is one, too.
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
