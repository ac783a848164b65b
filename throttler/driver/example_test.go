package driver_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// counts is a complete Backend, except that it never forgets a count.
type counts struct {
	mu     sync.Mutex
	states map[countName]*algorithm.State
}

type countName struct{ policy, key, partition string }

// of returns the states of the counts of charges. c.mu is held.
func (c *counts) of(charges []quota.Charge) []*algorithm.State {
	states := make([]*algorithm.State, len(charges))
	for i, charge := range charges {
		name := countName{charge.Policy.Name, charge.Key, charge.Partition}
		if c.states[name] == nil {
			c.states[name] = new(algorithm.State)
		}
		states[i] = c.states[name]
	}
	return states
}

func (c *counts) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return algorithm.Take(r, c.of(r.Charges())), nil
}

func (c *counts) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return algorithm.Evaluate(r, c.of(r.Charges())), nil
}

func (c *counts) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return algorithm.Settle(s, c.of(s.Charged.Charges())), nil
}

func (c *counts) Reset(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.of(r.Charges()) {
		s.Reset(r.Now)
	}
	return nil
}

// A backend that keeps the states of package algorithm.
func ExampleBackend() {
	ctx := context.Background()
	t := throttler.New(&counts{states: make(map[countName]*algorithm.State)}, &throttler.Options{
		Clock: clock.NewManual(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
	})
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Minute}}}
	for range 3 {
		d, err := t.Take(ctx, p.Charge("alice"))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d)
	}
	// Output:
	// allowed core used 1 of 2 until 2030-01-02T03:05:05Z
	// allowed core used 2 of 2 until 2030-01-02T03:05:05Z
	// refused core used 2 of 2 until 2030-01-02T03:05:05Z, again at 2030-01-02T03:05:05Z
}
