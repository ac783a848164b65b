package rollout_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
)

// Three processes that see a flip at different times deliver receipts twice, late, and out of
// order, before and after it. Each receipt settles once, wherever the counts are by then.
func TestReceiptsAcrossFlips(t *testing.T) {
	rng := rand.New(rand.NewPCG(testseed.Of(t), 0))
	p := newPair(t)
	tokens := &throttler.Policy{Name: "tokens", Limits: []throttler.Limit{{Quota: 100_000, Window: time.Hour}}}
	var all [3]*process
	for i := range all {
		all[i] = p.process("old", rollout.Options{Events: true})
		all[i].Throttler = throttler.New(all[i].rollout, &throttler.Options{Clock: p.clock, ReceiptKey: []byte("a secret of the test")})
	}
	type letter struct {
		text        string
		taken, real int64
		settled     bool
	}
	var letters []*letter
	used, again, flips := int64(0), 0, 0
	for step := range 300 {
		q := all[rng.IntN(len(all))]
		switch what := rng.IntN(20); {
		case what < 6 || len(letters) == 0:
			l := &letter{taken: 1 + rng.Int64N(100), real: rng.Int64N(150)}
			d, err := q.Take(t.Context(), throttler.Charge{Policy: tokens, Key: "alice", Cost: l.taken})
			if err != nil || !d.Allowed {
				t.Fatalf("step %d: %v, %v", step, &d, err)
			}
			if l.text, err = q.Receipt(d); err != nil {
				t.Fatal(err)
			}
			letters, used = append(letters, l), used+l.taken
		case what < 18:
			l := letters[rng.IntN(len(letters))]
			d, err := q.Open(l.text)
			if err != nil {
				t.Fatal(err)
			}
			switch _, err := q.Settle(t.Context(), d, l.real); {
			case l.settled && errors.Is(err, throttler.ErrSettled):
				again++
			case l.settled || err != nil:
				t.Fatalf("step %d: settled before is %t, and it returns %v", step, l.settled, err)
			default:
				used += l.real - l.taken
				l.settled = true
			}
		default:
			q.see(t, []string{"old", "new"}[rng.IntN(2)])
			flips++
			p.clock.Advance(time.Duration(rng.IntN(2000)) * time.Millisecond)
		}
		d, err := q.Take(t.Context(), throttler.Charge{Policy: tokens, Key: "alice", Cost: 1})
		if used++; err != nil || d.Limit(0).Used != used {
			t.Fatalf("step %d: %d used, %v; want %d", step, d.Limit(0).Used, err, used)
		}
	}
	t.Logf("%d flips, %d deliveries again", flips, again)
	if flips < 10 || again < 30 {
		t.Errorf("%d flips, %d deliveries again: too few to show anything", flips, again)
	}
}
