package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// example returns a throttler and its clock.
func example() (*throttler.Throttler, *clock.Manual) {
	c := clock.NewManual(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	return throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c}), c
}

// Take charges, Peek reads, and Refund refunds the charges of a take.
func Example() {
	ctx := context.Background()
	t, _ := example()
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}

	var last throttler.Decision
	for range 3 {
		d, err := t.Take(ctx, core.Charge("alice"))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("allowed", d.Allowed, "remaining", d.Limit(0).Remaining)
		if d.Allowed {
			last = d
		}
	}
	if _, err := t.Refund(ctx, last); err != nil {
		fmt.Println(err)
		return
	}
	d, err := t.Peek(ctx, core.Charge("alice"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("used", d.Limit(0).Used, "until", d.Limit(0).ResetAt.Format(time.TimeOnly))
	// Output:
	// allowed true remaining 1
	// allowed true remaining 0
	// allowed false remaining 0
	// used 1 until 04:04:05
}

// Uploads of a size that is known only afterwards: Check whether there is room, and Record the
// size. Uploads in parallel may go beyond the quota, and later ones wait that debt out.
func Example_modes() {
	t, _ := example()
	bytes := &throttler.Policy{Name: "bytes", Limits: []throttler.Limit{{Quota: 3000, Window: time.Hour}}}
	charge := func(m quota.Mode, cost int64) throttler.Decision {
		d, err := t.Take(context.Background(), throttler.Charge{Policy: bytes, Key: "alice", Mode: m, Cost: cost})
		if err != nil {
			fmt.Println(err)
		}
		return d
	}
	for range 4 {
		if !charge(quota.Check, 1).Allowed {
			fmt.Println("too many bytes")
			continue
		}
		sent := charge(quota.Record, 1200)
		fmt.Println("bytes left", sent.Limit(0).Remaining)
	}
	// Output:
	// bytes left 1800
	// bytes left 600
	// bytes left 0
	// too many bytes
}

// A take charges all limits of the policy, or nothing if one of them refuses.
func ExampleThrottler_Take() {
	t, _ := example()
	createToken := &throttler.Policy{Name: "auth.createToken", Limits: []throttler.Limit{
		{Quota: 20, Window: time.Minute},
		{Quota: 5, Window: 3 * time.Second},
	}}
	for range 6 {
		d, err := t.Take(context.Background(), createToken.Charge("alice"))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Limit(0).Remaining, d.Limit(1).Remaining)
		if !d.Allowed {
			fmt.Println("again in", d.RetryAt().Sub(d.At()))
		}
	}
	// Output:
	// true 19 4
	// true 18 3
	// true 17 2
	// true 16 1
	// true 15 0
	// false 15 0
	// again in 3s
}

// A user, its team and its organization are charged by one decision, all or nothing.
func ExampleThrottler_Take_chain() {
	t, _ := example()
	orgs := &throttler.Policy{Name: "org", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour}}}
	teams := &throttler.Policy{Name: "team", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}
	users := &throttler.Policy{Name: "user", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}

	for range 2 {
		d, err := t.Take(context.Background(), orgs.Charge("acme"), teams.Charge("blue"), users.Charge("alice"))
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, s := range d.Limits() {
			fmt.Println(s.Policy.Name, s.Used, s.Refused)
		}
	}
	// Output:
	// org 1 false
	// team 1 false
	// user 1 false
	// org 1 false
	// team 1 false
	// user 1 true
}

// A leaky bucket admits jobs at once, and determines when each may start.
func ExampleThrottler_Take_queue() {
	t, _ := example()
	jobs := &throttler.Policy{Name: "jobs", Limits: []throttler.Limit{
		{Quota: 2, Window: time.Second, Algorithm: throttler.LeakyBucket, MaxWait: time.Second},
	}}
	for range 4 {
		d, err := t.Take(context.Background(), jobs.Charge("mail"))
		if err != nil {
			fmt.Println(err)
			return
		}
		if !d.Allowed {
			fmt.Println("it would have to wait longer than a second")
			continue
		}
		wait := d.StartAt().Sub(d.At())
		fmt.Println("starts in", wait) // time.Sleep(wait), in a program
	}
	// Output:
	// starts in 0s
	// starts in 500ms
	// starts in 1s
	// it would have to wait longer than a second
}

// Settle replaces an estimated cost by the real one. It may exceed the quota: then the
// client waits until the debt is gone.
func ExampleThrottler_Settle() {
	t, c := example()
	rows := &throttler.Policy{Name: "rows", Limits: []throttler.Limit{
		{Quota: 100, Window: time.Minute, Algorithm: throttler.TokenBucket},
	}}
	d, _ := t.Take(context.Background(), throttler.Charge{Policy: rows, Key: "alice", Cost: 10}) // an estimate
	d, _ = t.Settle(context.Background(), d, 130)
	fmt.Println("used", d.Limit(0).Used, "remaining", d.Limit(0).Remaining)

	d, _ = t.Take(context.Background(), rows.Charge("alice"))
	fmt.Println("allowed", d.Allowed, "again in", d.RetryAt().Sub(d.At()))

	c.Set(d.RetryAt())
	d, _ = t.Take(context.Background(), rows.Charge("alice"))
	fmt.Println("allowed", d.Allowed)
	// Output:
	// used 130 remaining 0
	// allowed false again in 18.6s
	// allowed true
}

// An API allows ten calls per second. The second call would start after its deadline.
func ExampleThrottler_Wait() {
	t, _ := example()
	api := &throttler.Policy{Name: "api", Limits: []throttler.Limit{
		{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket},
	}}
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), 90*time.Millisecond)
		defer cancel()
		d, err := t.Wait(ctx, api.Charge("example.com"))
		fmt.Println("allowed", d.Allowed, "too late", errors.Is(err, context.DeadlineExceeded))
	}
	// Output:
	// allowed true too late false
	// allowed false too late true
}

// A login clears the failures before it. The key's counts of other policies stay.
func ExampleThrottler_Reset() {
	ctx := context.Background()
	t, _ := example()
	failures := &throttler.Policy{Name: "login.failures", Limits: []throttler.Limit{{Quota: 3, Window: time.Hour}}}
	for range 3 {
		_, _ = t.Take(ctx, failures.Charge("alice")) // a wrong password
	}
	if err := t.Reset(ctx, failures.Charge("alice")); err != nil { // the right one
		fmt.Println(err)
		return
	}
	d, _ := t.Peek(ctx, failures.Charge("alice"))
	fmt.Println("remaining", d.Limit(0).Remaining)
	// Output:
	// remaining 3
}

// A gateway charges an estimate, and a billing process settles it. The queue between them
// delivers the message twice.
func ExampleThrottler_Open() {
	ctx := context.Background()
	backend := memorybackend.NewDefault() // for two processes, a store that both reach
	options := &throttler.Options{ReceiptKey: []byte("from the secrets of the deployment")}
	gateway, billing := throttler.New(backend, options), throttler.New(backend, options)
	tokens := &throttler.Policy{Name: "tokens", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour}}}

	d, err := gateway.Take(ctx, throttler.Charge{Policy: tokens, Key: "alice", Cost: 500}) // an estimate
	if err != nil || !d.Allowed {
		fmt.Println(d, err)
		return
	}
	text, err := gateway.Receipt(d)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		d, err := billing.Open(text)
		if err != nil {
			fmt.Println(err) // the message is not ours, or too old
			return
		}
		d, err = billing.Settle(ctx, d, 37)
		switch {
		case errors.Is(err, throttler.ErrSettled):
			fmt.Println("delivered twice")
		case err != nil:
			fmt.Println(err) // have it delivered again
		default:
			fmt.Println("used", d.Limit(0).Used)
		}
	}
	// Output:
	// used 37
	// delivered twice
}

// An API has asked two workers to send no calls for two seconds.
func ExampleThrottler_Pause() {
	ctx := context.Background()
	t, c := example()
	api := &throttler.Policy{Name: "api", Limits: []throttler.Limit{
		{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket},
	}}
	for range 2 {
		err := t.Pause(ctx, c.Now().Add(2*time.Second), api.Charge("example.com"))
		if err != nil {
			fmt.Println(err)
		}
	}
	d, _ := t.Take(ctx, api.Charge("example.com"))
	fmt.Println("allowed", d.Allowed, "again in", d.RetryAt().Sub(d.At()))
	// Output:
	// allowed false again in 2s
}
