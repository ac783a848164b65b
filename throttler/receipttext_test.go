package throttler_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

var receiptOptions = throttler.Options{Clock: clock.NewManual(time.UnixMilli(1_900_000_000_000)), ReceiptKey: receiptKey}

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
		want := throttler.ErrInvalid
		if i >= 1 && i < 5 { // the key's id
			want = throttler.ErrReceiptKey
		}
		if _, err := own.Open(base64.RawURLEncoding.EncodeToString(changed)); !errors.Is(err, want) {
			t.Fatalf("with byte %d changed: %v, want an error that wraps %v", i, err, want)
		}
	}
	for name, bad := range map[string]string{
		"nothing": "", "longer": text + "AA", "no base64": "{" + text[1:], "of spaces": " " + text,
		"with a newline": text + "\n", "before a newline": "\r\n" + text, "with a newline within": text[:9] + "\n" + text[9:],
		"padded": text + strings.Repeat("=", 1+(3-len(text)%4)%3), "of another alphabet": base64.RawStdEncoding.EncodeToString(sealed[:len(sealed)-1]) + "+",
		"cut": text[:len(text)-1], "of the head": text[:30],
	} {
		if _, err := own.Open(bad); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%s: %v, want an error that wraps ErrInvalid", name, err)
		}
	}
	for name, key := range map[string][]byte{"another key": []byte("another deployment's"), "no key": nil} {
		other := throttler.New(backend, &throttler.Options{ReceiptKey: key})
		if _, err := other.Open(text); !errors.Is(err, throttler.ErrReceiptKey) || errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%s: %v, want an error that wraps ErrReceiptKey, and not ErrInvalid", name, err)
		}
		if _, err := other.Open("not a receipt"); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%s, not a receipt: %v, want an error that wraps ErrInvalid", name, err)
		}
	}
	if _, err := throttler.New(backend, nil).Receipt(d); !errors.Is(err, throttler.ErrReceiptKey) {
		t.Errorf("a receipt without a key: %v, want an error that wraps ErrReceiptKey", err)
	}
	for _, key := range []string{"15 bytes long..", ""} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, fmt.Sprintf("ReceiptKey has %d bytes; it must have 16 or more", len(key))) {
					t.Errorf("a short key: %v, want a panic that says what it must be", text)
				}
			}()
			throttler.New(backend, &throttler.Options{ReceiptKey: []byte(key)})
		}()
	}
	if shown := fmt.Sprintf("%v %+v", receiptOptions, &receiptOptions); strings.Contains(shown, "secret") {
		t.Errorf("options show the secret: %s", shown)
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

// A receipt that is settled in another store than the one that was charged is warned of, once. One that is
// settled to nothing is not.
func TestReceiptOfAnotherStore(t *testing.T) {
	seen := new(warnings)
	options := receiptOptions
	options.Observer = seen
	own, other := throttler.New(memorybackend.NewDefault(), &options), throttler.New(memorybackend.NewDefault(), &options)
	p := policy("core", per(100, time.Hour))
	for i, step := range []struct {
		settles *throttler.Throttler
		cost    int64
		warned  int
	}{{own, 0, 0}, {own, 3, 0}, {other, 0, 0}, {other, 3, 1}, {other, 3, 1}} {
		d, err := own.Take(t.Context(), throttler.Charge{Policy: p, Key: fmt.Sprint(i), Cost: 50})
		if err != nil {
			t.Fatal(err)
		}
		text, err := own.Receipt(d)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := step.settles.Open(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := step.settles.Settle(t.Context(), opened, step.cost); err != nil {
			t.Fatal(err)
		}
		if len(seen.text) != step.warned || step.warned > 0 && !strings.HasPrefix(seen.text[0], "core: a receipt was settled, and nothing of its charges is counted") {
			t.Errorf("step %d: warnings %q", i, seen.text)
		}
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
				if _, err := own.Settle(ctx, d, 5); !errors.Is(err, throttler.ErrSettled) {
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
	// In flight alone, nothing is left to settle.
	own := throttler.New(memorybackend.NewDefault(), &receiptOptions)
	p := &throttler.Policy{Name: "held", Limits: []throttler.Limit{{Quota: 3, Window: 30 * time.Second, Algorithm: throttler.InFlight}}}
	d, err := own.Take(ctx, p.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := own.Receipt(d); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("in flight alone: %q, %v; want an error that wraps ErrInvalid", text, err)
	}
}

// The end of the units in flight settles nothing else: a receipt is settled before it or after
// it, and each ends once, though another decision's units are of the same millisecond.
func TestUnitsInFlightEndApartFromTheReceipt(t *testing.T) {
	ctx := t.Context()
	p := &throttler.Policy{Name: "both", Limits: []throttler.Limit{{Quota: 9, Window: 30 * time.Second, Algorithm: throttler.InFlight}, {Quota: 10_000, Window: 5 * time.Minute}}}
	charges := []throttler.Charge{{Policy: p, Key: "alice", Cost: 900}, {Policy: p, Key: "acme", Cost: 900}}
	for _, test := range []struct {
		name  string
		order string // e: the units end, s: another process settles, r: they are renewed, -: 10 minutes pass, x: this process settles
		used  int64  // of each key, next to another decision of 900
	}{
		{"ends, and is settled", "es", 942},
		{"ends twice, and is settled", "ees", 942},
		{"ends, is settled, and ends", "ese", 942},
		{"is settled, and ends twice", "see", 942},
		{"is renewed, ends, is renewed, and settled", "rers", 942},
		{"ends, and is settled here, and there", "exs", 907},
		{"is settled here, and there, and ends", "xse", 907},
		{"is settled there, and here", "sx", 942},
		{"ends, and nothing settles it", "e", 1800},
		{"is settled here, too late", "-x", 0},
	} {
		for _, count := range []int{1, 2} {
			t.Run(fmt.Sprint(test.name, count), func(t *testing.T) {
				c := clock.NewManual(time.UnixMilli(1_900_000_000_000))
				options := &throttler.Options{Clock: c, ReceiptKey: receiptKey}
				store := memorybackend.NewDefault()
				own, another := throttler.New(store, options), throttler.New(store, options)
				charges := charges[:count]
				costs := func(cost int64) []int64 { return slices.Repeat([]int64{cost}, count) }
				beside, err := own.Take(ctx, charges...)
				if err != nil {
					t.Fatal(err)
				}
				d, err := own.Take(ctx, charges...)
				if err != nil {
					t.Fatal(err)
				}
				text, err := own.Receipt(d)
				if err != nil {
					t.Fatal(err)
				}
				settled := false
				for _, what := range test.order {
					switch what {
					case 'e':
						_, err = own.Settle(ctx, d)
					case 'r':
						for _, d := range []throttler.Decision{beside, d} { // at one instant, again
							_, err = own.Renew(ctx, d)
						}
					case '-':
						for range 60 {
							c.Advance(10 * time.Second)
							_, err = own.Renew(ctx, beside)
						}
					case 's', 'x':
						if what == 'x' {
							_, err = own.Settle(ctx, d, costs(7)...)
						} else {
							opened, _ := another.Open(text)
							_, err = another.Settle(ctx, opened, costs(42)...)
						}
						if settled && errors.Is(err, throttler.ErrSettled) || what == 'x' && test.used == 0 && errors.Is(err, throttler.ErrInvalid) {
							err = nil
						}
						settled = true
					}
					if err != nil {
						t.Fatalf("%c of %s: %v", what, test.order, err)
					}
				}
				now, err := own.Peek(ctx, charges...)
				if err != nil {
					t.Fatal(err)
				}
				for i, l := range now.Limits() {
					want := test.used
					if i%2 == 0 {
						want = 1
					}
					if l.Used != want {
						t.Errorf("%s: limit %d has %d, want %d", test.order, i, l.Used, want)
					}
				}
			})
		}
	}
}

// A worker that settles a receipt without costs has done nothing, and learns that.
func TestAReceiptIsSettledWithCosts(t *testing.T) {
	own := throttler.New(memorybackend.NewDefault(), &receiptOptions)
	d := take(t, own, policy("core", per(10, time.Hour)).Charge("alice"))
	text, err := own.Receipt(d)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := own.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Settle(t.Context(), opened); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("without costs: %v, want an error that wraps ErrInvalid", err)
	}
	if _, err := own.Settle(t.Context(), opened, 1); err != nil {
		t.Error(err)
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

// A receipt may be made while a renewal splits the decision into its partitions.
func TestReceiptDuringARenewal(t *testing.T) {
	ctx := t.Context()
	th := throttler.New(memorybackend.NewDefault(), &receiptOptions)
	p := &throttler.Policy{Name: "both", Limits: []throttler.Limit{{Quota: 300, Window: 30 * time.Second, Algorithm: throttler.InFlight}, {Quota: 300, Window: 5 * time.Minute}}}
	for range 100 {
		d, err := th.Take(ctx, p.Charge("alice"))
		if err != nil || !d.Allowed {
			t.Fatal(&d, err)
		}
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := th.Renew(ctx, d); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			if _, err := th.Receipt(d); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
	}
}

// A debt that drains for centuries bounds neither a receipt's life nor its settlement to once.
func TestReceiptOfADebtForCenturies(t *testing.T) {
	own := throttler.New(memorybackend.NewDefault(), &receiptOptions)
	p := policy("core", throttler.Limit{Quota: 1, Window: time.Hour, Algorithm: throttler.TokenBucket})
	for cost := int64(1_000_000); cost < 60_000_000; cost += 1_000_000 { // hours
		key := fmt.Sprint(cost)
		text, err := own.Receipt(take(t, own, throttler.Charge{Policy: p, Key: key, Cost: cost, Mode: quota.Record}))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			opened, err := own.Open(text)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := own.Settle(t.Context(), opened, cost+1); errors.Is(err, throttler.ErrSettled) != (i == 1) {
				t.Errorf("a debt of %d hours, settlement %d: %v", cost, i+1, err)
			}
		}
	}
}
