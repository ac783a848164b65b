package rollout_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
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
		all[i] = p.process("old", rollout.Options{Refresh: time.Minute})
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

// Processes with clocks that differ deliver receipts at any time, until long after they have
// expired, while their counts move between backends of three kinds all the time. No receipt is
// settled twice, whichever backend recorded the first settlement.
func TestSequentialReceiptsWhileCountsMove(t *testing.T) {
	rng, flags := testseed.Rand(t, 2), testseed.Locked(t, 3)
	moving := newRestless(t, flags.IntN, 1, houses(t)["three kinds"](t))
	var clocks [3]*clock.Manual
	var all [3]*throttler.Throttler
	for i := range all {
		clocks[i] = clock.NewManual(t0.Add(time.Duration(4*i) * time.Second))
		all[i] = throttler.New(moving, &throttler.Options{Clock: clocks[i], ReceiptKey: []byte("a secret of the test")})
	}
	const quota = 1 << 40
	var policies []*throttler.Policy
	for _, l := range []throttler.Limit{
		{Quota: quota, Window: 20 * time.Second}, {Quota: quota, Window: 30 * time.Second, Aligned: true}, {Quota: quota, Window: 20 * time.Second, Algorithm: throttler.SlidingWindow},
		{Quota: 1 << 10, Window: 20 * time.Second, Algorithm: throttler.SlidingLog}, {Quota: 1 << 10, Window: 20 * time.Second, Algorithm: throttler.TokenBucket},
	} {
		policies = append(policies, &throttler.Policy{Name: l.Algorithm.String(), Limits: []throttler.Limit{l, {Quota: 1 << 40, Window: time.Minute}}})
	}
	type letter struct {
		text    string
		settled bool
	}
	letters := make([][]*letter, len(policies))
	settled, again, expired := 0, 0, 0
	for step := range 3000 {
		i := rng.IntN(len(policies))
		q := all[rng.IntN(len(all))]
		if rng.IntN(3) == 0 || len(letters[i]) == 0 {
			d, err := q.Take(t.Context(), throttler.Charge{Policy: policies[i], Key: "alice", Cost: 1 + rng.Int64N(9)})
			if err != nil {
				t.Fatal(err)
			}
			if text, err := q.Receipt(d); err == nil {
				letters[i] = append(letters[i], &letter{text: text})
			} else if d.Allowed {
				t.Fatal(err)
			}
		} else {
			n := len(letters[i])
			l := letters[i][n-1-rng.IntN(min(n, 30))]
			d, err := q.Open(l.text)
			if err == nil {
				_, err = q.Settle(t.Context(), d, rng.Int64N(12))
			}
			switch {
			case errors.Is(err, throttler.ErrSettled):
				again++
			case errors.Is(err, throttler.ErrInvalid):
				expired++
			case err != nil || l.settled:
				t.Fatalf("step %d: policy %s: settled before is %t, and it returns %v", step, policies[i].Name, l.settled, err)
			default:
				settled++
				l.settled = true
			}
		}
		by := time.Duration(rng.IntN(400)) * time.Millisecond
		for _, c := range clocks {
			c.Advance(by)
		}
	}
	moved, followed, lost := moving.moves()
	t.Logf("%d settled, %d again, %d expired, %d moves, %d followed", settled, again, expired, moved, followed)
	if settled < 100 || again < 100 || expired < 100 || moved < 300 || lost > 0 {
		t.Errorf("%d settled, %d again, %d expired, %d moves, %d lost: too few to show anything", settled, again, expired, moved, lost)
	}
}
