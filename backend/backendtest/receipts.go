package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

func receiptCases() []testCase {
	var cases []testCase
	for _, l := range tenPer10s {
		cases = append(cases, testCase{
			name:        nameOf(l) + ": each receipt is settled once, also delivered twice, late, cut, and out of order",
			explanation: settledOnce,
			run:         func(ctx context.Context, b driver.Backend) error { return deliver(ctx, b, l) },
		}, testCase{
			name:        nameOf(l) + ": a receipt that is settled stays settled to its end, whichever process tries, by its own clock",
			explanation: settledOnce,
			run:         func(ctx context.Context, b driver.Backend) error { return deliverAgain(ctx, b, l) },
		})
	}
	return append(cases,
		testCase{
			name:        "of several charges and partitions",
			explanation: settledOnce,
			run:         deliverSeveral,
		},
		testCase{
			name:        "of deliveries at once one settles",
			explanation: settledOnce,
			run:         deliverAtOnce,
		},
		testCase{
			name:        "a refund by a receipt of an earlier charge does nothing after a reset",
			explanation: resetRefunds,
			run:         deliverAfterReset,
		})
}

var receiptKey = []byte("a secret of the suite")

// fleet is three processes that share a backend and a key of receipts.
type fleet struct {
	clock      *clock.Manual
	throttlers [3]*throttler.Throttler
}

func newFleet(backend driver.Backend) *fleet {
	f := &fleet{clock: clock.NewManual(t0)}
	for i := range f.throttlers {
		f.throttlers[i] = throttler.New(backend, &throttler.Options{Clock: f.clock, ReceiptKey: receiptKey})
	}
	return f
}

// take takes charges, and returns the decision and its receipt.
func (f *fleet) take(ctx context.Context, process int, charges ...throttler.Charge) (d throttler.Decision, text string, err error) {
	d, err = f.throttlers[process].Take(ctx, charges...)
	if err == nil && d.Allowed {
		text, err = f.throttlers[process].Receipt(d)
	}
	return d, text, err
}

// settle settles the receipt text at cost.
func (f *fleet) settle(ctx context.Context, process int, text string, costs ...int64) error {
	d, err := f.throttlers[process].Open(text)
	if err == nil {
		_, err = f.throttlers[process].Settle(ctx, d, costs...)
	}
	return err
}

// message is a receipt on its way.
type message struct {
	text     string
	cost     int64
	decision throttler.Decision
	process  int // that took
	settled  bool
	instant  time.Time
}

// deliver takes, settles by receipts, and compares the used units after each step with a
// model's, which settles the decisions themselves.
func deliver(ctx context.Context, backend driver.Backend, l throttler.Limit) error {
	rng := rand.New(rand.NewPCG(1, uint64(l.Algorithm)))
	f := newFleet(backend)
	modelThrottler := throttler.New(make(model), &throttler.Options{Clock: f.clock})
	l.Quota = 100
	charge := named("core", l)
	var messages []*message
	for step := range 60 {
		f.clock.Advance(time.Duration(rng.IntN(700)) * time.Millisecond)
		process := rng.IntN(3)
		if rng.IntN(2) == 0 || len(messages) == 0 {
			cost := 1 + rng.Int64N(9)
			want, err := modelThrottler.Take(ctx, charge(cost)...)
			if err != nil {
				return err
			}
			got, text, err := f.take(ctx, process, charge(cost)...)
			if err != nil || got.Allowed != want.Allowed {
				return fmt.Errorf("step %d: take: got %v, %w; want %v", step, got, err, want)
			}
			if got.Allowed {
				messages = append(messages, &message{text: text, cost: rng.Int64N(2 * cost), decision: want, process: process, instant: f.clock.Now()})
			}
			continue
		}
		m := messages[rng.IntN(len(messages))]
		if cut := m.text[:rng.IntN(len(m.text))]; !errors.Is(f.settle(ctx, process, cut, m.cost), throttler.ErrInvalid) {
			return fmt.Errorf("step %d: a text that was cut to %d of %d bytes is none that wraps ErrInvalid", step, len(cut), len(m.text))
		}
		if err := f.receive(ctx, modelThrottler, process, m, l.Window); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if err := f.compare(ctx, modelThrottler, charge(1)); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	return nil
}

// receive makes process settle m, and modelThrottler too if m is neither settled nor too late.
func (f *fleet) receive(ctx context.Context, modelThrottler *throttler.Throttler, process int, m *message, window time.Duration) error {
	err := f.settle(ctx, process, m.text, m.cost)
	expired := errors.Is(err, throttler.ErrInvalid)
	switch {
	case expired && f.clock.Now().Before(m.instant.Add(window)):
		return fmt.Errorf("a receipt of %v before is invalid: %w", f.clock.Now().Sub(m.instant), err)
	case expired:
		return nil
	case m.settled != errors.Is(err, throttler.ErrSettled) || !m.settled && err != nil:
		return fmt.Errorf("a receipt, settled before: %v: got %w", m.settled, err)
	case m.settled:
		return nil
	}
	m.settled = true
	_, err = modelThrottler.Settle(ctx, m.decision, m.cost)
	return err
}

// compare compares the used units and reset times with modelThrottler's.
func (f *fleet) compare(ctx context.Context, modelThrottler *throttler.Throttler, charges []throttler.Charge) error {
	got, err := f.throttlers[0].Peek(ctx, charges...)
	if err != nil {
		return err
	}
	want, err := modelThrottler.Peek(ctx, charges...)
	if err != nil {
		return err
	}
	for i := range want.Limits() {
		g, w := got.Limit(i), want.Limit(i)
		if g.Used != w.Used || !g.ResetAt.Equal(w.ResetAt) {
			return fmt.Errorf("used is %d until %v; want %d until %v", g.Used, g.ResetAt, w.Used, w.ResetAt)
		}
	}
	return nil
}

// used returns the used units of the first limit of charges.
func (f *fleet) used(ctx context.Context, charges ...throttler.Charge) (int64, error) {
	d, err := f.throttlers[0].Peek(ctx, charges...)
	if err != nil {
		return 0, err
	}
	return d.Limit(0).Used, nil
}

// deliverAgain settles receipts at several times of their life, and each again until it has
// expired everywhere, by processes with clocks that differ by up to algorithm.Margin.
func deliverAgain(ctx context.Context, backend driver.Backend, l throttler.Limit) error {
	var processes [3]*throttler.Throttler
	now := clock.NewManual(t0)
	clocks := [3]*clock.Manual{now, clock.NewManual(t0), clock.NewManual(t0)}
	advance := func(d time.Duration) {
		now.Advance(d)
		clocks[1].Set(now.Now().Add(algorithm.Margin / 2))
		clocks[2].Set(now.Now().Add(-algorithm.Margin / 2))
	}
	for i := range processes {
		processes[i] = throttler.New(backend, &throttler.Options{Clock: clocks[i], ReceiptKey: receiptKey})
	}
	l.Quota, l.Window, l.Burst = 1000, 5*time.Minute, 0
	life := algorithm.Lifetime(l)
	for first := range 8 {
		charge := named(fmt.Sprintf("core-%d", first), l)(100)
		advance(0)
		d, err := processes[0].Take(ctx, charge...)
		if err != nil {
			return err
		}
		text, err := processes[0].Receipt(d)
		if err != nil {
			return err
		}
		advance(life * time.Duration(first) / 8)
		for again := range 20 {
			opened, err := processes[again%3].Open(text)
			if err != nil {
				return err
			}
			cost := []int64{101, 99, 0}[(first+again)%3]
			_, err = processes[again%3].Settle(ctx, opened, cost)
			switch {
			case again == 0 && err != nil:
				return fmt.Errorf("first settled at %d/8 of its life: %w", first, err)
			case again > 0 && !errors.Is(err, throttler.ErrSettled) && !errors.Is(err, throttler.ErrInvalid):
				return fmt.Errorf("settled at %d/8 of its life, and again: %w", first, err)
			}
			advance(life / 16)
		}
	}
	return nil
}

func deliverSeveral(ctx context.Context, backend driver.Backend) error {
	f := newFleet(backend)
	core, second := named("core", tenPer10s[0])(4)[0], named("other", tenPer10s[4])(4)[0]
	member := core.Within("acme")
	elsewhere := throttler.Charge{Policy: core.Policy, Key: "\xff{bob}\x00", Cost: 4}
	charges := []throttler.Charge{core, second, member, elsewhere}
	_, text, err := f.take(ctx, 0, charges...)
	if err != nil {
		return err
	}
	if err := f.settle(ctx, 1, text, 3, 0, 6, 1); err != nil {
		return err
	}
	if err := f.settle(ctx, 2, text, 0, 0, 0, 0); !errors.Is(err, throttler.ErrSettled) {
		return fmt.Errorf("a second delivery is %w, want ErrSettled", err)
	}
	for i, want := range []int64{3, 0, 6, 1} {
		if got, err := f.used(ctx, charges[i]); err != nil || got != want {
			return fmt.Errorf("charge %d: %d are used, %w, want %d", i, got, err, want)
		}
	}
	return nil
}

func deliverAtOnce(ctx context.Context, backend driver.Backend) error {
	f := newFleet(backend)
	charge := named("core", tenPer10s[0])
	d, text, err := f.take(ctx, 0, charge(7)...)
	if err != nil {
		return err
	}
	errs := make([]error, 6)
	var deliveries sync.WaitGroup
	for i := range errs {
		deliveries.Go(func() {
			if i == 0 { // as the process that took knows it
				_, errs[i] = f.throttlers[0].Settle(ctx, d, 2)
			} else {
				errs[i] = f.settle(ctx, i%3, text, 2)
			}
		})
	}
	deliveries.Wait()
	receipts := 0
	for _, err := range errs {
		switch {
		case err == nil:
			receipts++
		case !errors.Is(err, throttler.ErrSettled):
			return err
		}
	}
	if used, err := f.used(ctx, charge(1)...); err != nil || receipts != 1 || used != 2 {
		return fmt.Errorf("%d of %d deliveries have settled, and %d units are used, %w; want 1, and 2", receipts, len(errs), used, err)
	}
	return nil
}

func deliverAfterReset(ctx context.Context, backend driver.Backend) error {
	f := newFleet(backend)
	charge := named("core", tenPer10s[1])
	_, text, err := f.take(ctx, 0, charge(7)...)
	if err != nil {
		return err
	}
	if err := f.throttlers[1].Reset(ctx, charge(1)...); err != nil {
		return err
	}
	if _, err := f.throttlers[0].Take(ctx, charge(4)...); err != nil {
		return err
	}
	d, err := f.throttlers[2].Open(text)
	if err != nil {
		return err
	}
	if _, err := f.throttlers[2].Refund(ctx, d); err != nil {
		return err
	}
	if used, err := f.used(ctx, charge(1)...); err != nil || used != 4 {
		return fmt.Errorf("%d are used, %w, want 4", used, err)
	}
	return nil
}
