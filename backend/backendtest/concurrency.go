package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

const (
	goroutines = 64
	takesEach  = 4 // 256 in all, for a quota of 200
	rushQuota  = 200
)

func concurrencyCases() []testCase {
	var cases []testCase
	for _, l := range tenPer10s {
		l.Quota, l.Window = rushQuota, time.Minute
		cases = append(cases, testCase{
			name:        fmt.Sprintf("%d goroutines share a quota of %d, %s", goroutines, rushQuota, nameOf(l)),
			explanation: returnsDone,
			run: func(ctx context.Context, backend driver.Backend) error {
				return rush(ctx, backend, l)
			},
		})
	}
	return append(cases,
		testCase{
			name:        "takes of several charges leave nothing half charged",
			explanation: allOrNothing,
			run:         contend,
		},
		testCase{
			name:        "refunds meet takes",
			explanation: refundNames,
			run:         takeAndRefund,
		})
}

// together runs do in many goroutines at once and returns their errors.
func together(do func(g int) error) error {
	errs := make([]error, goroutines)
	var start, end sync.WaitGroup
	start.Add(1)
	for g := range goroutines {
		end.Go(func() {
			start.Wait()
			errs[g] = do(g)
		})
	}
	start.Done()
	end.Wait()
	return errors.Join(errs...)
}

// rush charges one key in many goroutines. As many units as the quota has are allowed, and no
// two of their answers show the same count.
func rush(ctx context.Context, backend driver.Backend, l throttler.Limit) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	core := charging(l)
	allowed := make([][]decision.Status, goroutines)
	err := together(func(g int) error {
		for range takesEach {
			d, err := t.Take(ctx, core(1)...)
			if err != nil {
				return err
			}
			if d.Allowed {
				allowed[g] = append(allowed[g], d.Limit(0))
			} else if d.Limit(0).Used != rushQuota {
				return fmt.Errorf("refused at used %d of %d", d.Limit(0).Used, rushQuota)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	answers := slices.Concat(allowed...)
	if len(answers) != rushQuota {
		return fmt.Errorf("%d of %d takes were allowed, want %d", len(answers), goroutines*takesEach, rushQuota)
	}
	slices.SortFunc(answers, func(a, b decision.Status) int { return int(a.Used - b.Used) })
	for i, s := range answers {
		if s.Used != int64(i+1) {
			return fmt.Errorf("an answer says used %d where the %dth is due: two charges saw one count", s.Used, i+1)
		}
		// A unit leaves the queue every 300 ms.
		start := t0.Add(time.Duration(i) * time.Minute / rushQuota)
		if l.Algorithm.Queues() && !s.StartAt.Equal(start) {
			return fmt.Errorf("the charge that made it %d starts at %s, want %s", s.Used, after(s.StartAt), after(start))
		}
	}
	return nil
}

// contend takes several charges at once, some of them shared between takes and named in both
// orders, and checks that each count is the sum of the allowed takes.
func contend(ctx context.Context, backend driver.Backend) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	policy := func(name string, quota int64) *throttler.Policy {
		return &throttler.Policy{Name: name, Limits: []throttler.Limit{
			{Quota: quota, Window: time.Minute},
			{Quota: quota, Window: time.Minute, Algorithm: throttler.TokenBucket},
		}}
	}
	org, left, right := policy("org", 120), policy("left", 40), policy("right", 100)
	charge := func(p *throttler.Policy, cost int64) throttler.Charge {
		return throttler.Charge{Policy: p, Key: "k", Cost: cost, Partition: "acme"}
	}
	kinds := [][]throttler.Charge{
		{charge(org, 1), charge(left, 1)},
		{charge(left, 1), charge(org, 1)},
		{charge(org, 2), charge(right, 1)},
		{charge(right, 3), charge(left, 1), charge(org, 1)},
	}
	allowed := make([][]int64, goroutines)
	err := together(func(g int) error {
		allowed[g] = make([]int64, len(kinds))
		for i := range takesEach {
			kind := (g + i) % len(kinds)
			d, err := t.Take(ctx, kinds[kind]...)
			if err != nil {
				return err
			}
			if d.Allowed {
				allowed[g][kind]++
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	want := make(map[*throttler.Policy]int64)
	for g := range allowed {
		for kind, n := range allowed[g] {
			for _, c := range kinds[kind] {
				want[c.Policy] += n * c.Cost
			}
		}
	}
	d, err := t.Peek(ctx, charge(org, 0), charge(left, 0), charge(right, 0))
	if err != nil {
		return err
	}
	for _, s := range d.Limits() {
		if s.Used != want[s.Policy] || s.Used > s.Limit.Quota {
			return fmt.Errorf("used of %q, %v, is %d of %d; the takes that were allowed charged it %d", s.Policy.Name, s.Limit, s.Used, s.Limit.Quota, want[s.Policy])
		}
	}
	return nil
}

// takeAndRefund refunds all takes, and checks that no units are used in the end.
func takeAndRefund(ctx context.Context, backend driver.Backend) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	core := charging(tenPer10s[1:]...)
	err := together(func(g int) error {
		for range takesEach {
			d, err := t.Take(ctx, core(int64(1+g%3))...)
			if err != nil {
				return err
			}
			if d, err = t.Refund(ctx, d); err != nil {
				return err
			}
			for _, s := range d.Limits() {
				if s.Used < 0 || s.Used > s.Limit.Quota || s.Remaining > s.Limit.Capacity() {
					return fmt.Errorf("%v: used %d, remaining %d after a refund", s.Limit, s.Used, s.Remaining)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	d, err := t.Peek(ctx, core(10)...)
	if err != nil {
		return err
	}
	for _, s := range d.Limits() {
		if s.Used != 0 && !s.Limit.Algorithm.Queues() { // a queue keeps places that it could not refund
			return fmt.Errorf("%v: used is %d after everything was refunded, want 0", s.Limit, s.Used)
		}
	}
	return nil
}
