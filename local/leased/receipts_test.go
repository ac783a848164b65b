package leased_test

import (
	"errors"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
)

// Takes from the leases of three processes are settled by receipts in any of them, late and more
// than once, and once processes have given their units back. Each receipt settles once, and at
// the end of each window the store has counted the real costs.
func TestReceiptsOfLeases(t *testing.T) {
	rng := testseed.Rand(t, 0)
	store, clk := memorybackend.NewDefault(), clock.NewManual(t0)
	options := &throttler.Options{Clock: clk, ReceiptKey: []byte("a secret of the test")}
	tokens := &throttler.Policy{Name: "tokens", Limits: []throttler.Limit{{Quota: 5000, Window: time.Minute}, {Quota: 50_000, Window: 10 * time.Minute, Aligned: true}}}
	type letter struct {
		text    string
		cost    int64
		settled bool
	}
	settled, again, leases := 0, 0, int64(0)
	for window := range 10 {
		var processes [3]process
		for i := range processes {
			b := open(t, store, &leased.Options{Clock: clk})
			processes[i] = process{b, throttler.New(b, options)}
		}
		var letters []*letter
		used := int64(0)
		for step := range 300 {
			p := processes[rng.IntN(len(processes))]
			switch what := rng.IntN(20); {
			case what < 12 || len(letters) == 0:
				l := &letter{cost: 1 + rng.Int64N(9)}
				d, err := p.throttler.Take(t.Context(), throttler.Charge{Policy: tokens, Key: "alice", Cost: l.cost})
				if err != nil || !d.Allowed {
					t.Fatalf("step %d: %v, %v", step, &d, err)
				}
				if l.text, err = p.throttler.Receipt(d); err != nil {
					t.Fatal(err)
				}
				letters, used = append(letters, l), used+l.cost
			case what < 19:
				l, real := letters[rng.IntN(len(letters))], rng.Int64N(12)
				d, err := p.throttler.Open(l.text)
				if err != nil {
					t.Fatal(err)
				}
				switch _, err := p.throttler.Settle(t.Context(), d, real); {
				case l.settled && errors.Is(err, throttler.ErrSettled):
					again++
				case l.settled || err != nil:
					t.Fatalf("step %d: settled before is %t, and it returns %v", step, l.settled, err)
				default:
					settled++
					l.settled, used = true, used+real-l.cost
				}
			default:
				p.backend.Sweep()
			}
			clk.Advance(time.Duration(rng.IntN(150)) * time.Millisecond)
		}
		for _, p := range processes {
			leases += p.backend.Stats().Leases
			if err := p.backend.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if d, err := throttler.New(store, options).Peek(t.Context(), tokens.Charge("alice")); err != nil || d.Limit(0).Used != used {
			t.Errorf("window %d: the store has counted %d of the minute, %v; want %d", window, d.Limit(0).Used, err, used)
		}
		clk.Advance(time.Hour)
		d, err := processes[0].throttler.Open(letters[0].text)
		if err == nil {
			_, err = processes[0].throttler.Settle(t.Context(), d, 1)
		}
		if !errors.Is(err, throttler.ErrInvalid) && !errors.Is(err, throttler.ErrSettled) {
			t.Errorf("window %d: a receipt an hour later: %v", window, err)
		}
	}
	t.Logf("%d settled, %d again, %d leases", settled, again, leases)
	if settled < 100 || again < 100 || leases == 0 {
		t.Errorf("%d settled, %d again, %d leases: too few to show anything", settled, again, leases)
	}
}
