package decision_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
)

var createToken = &throttler.Policy{Name: "auth.createToken", Limits: []throttler.Limit{
	{Quota: 20, Window: time.Minute},
	{Quota: 2, Window: 3 * time.Second},
}}

// Takes against two limits, until one of them refuses.
func Example() {
	t, _ := newThrottler()
	for range 3 {
		d, err := t.Take(context.Background(), createToken.Charge("alice"))
		if err != nil {
			fmt.Println(err)
			return
		}
		s := d.Binding()
		fmt.Println("allowed", d.Allowed, "remaining", s.Remaining, "of", s.Limit.Quota)
		if !d.Allowed {
			fmt.Println("again in", d.RetryAt().Sub(d.At()))
		}
	}
	// Output:
	// allowed true remaining 1 of 2
	// allowed true remaining 0 of 2
	// allowed false remaining 0 of 2
	// again in 3s
}

// Limits reports every limit, even if one of them refuses.
func ExampleDecision_Limits() {
	t, _ := newThrottler()
	var d throttler.Decision
	for range 3 {
		d, _ = t.Take(context.Background(), createToken.Charge("alice"))
	}
	for _, s := range d.Limits() {
		fmt.Printf("%d of %d used until %s", s.Used, s.Limit.Quota, s.ResetAt.Format(time.TimeOnly))
		if s.Refused {
			fmt.Print(", refused")
		}
		fmt.Println()
	}
	// Output:
	// 2 of 20 used until 03:05:05
	// 2 of 2 used until 03:04:08, refused
}

// Binding returns the limit to show where there is room for only one.
func ExampleDecision_Binding() {
	t, c := newThrottler()
	take := func() decision.Status {
		d, _ := t.Take(context.Background(), createToken.Charge("alice"))
		return d.Binding()
	}
	s := take()
	fmt.Printf("%d of %d left in %v\n", s.Remaining, s.Limit.Quota, s.Limit.Window)
	for range 18 {
		c.Advance(2 * time.Second)
		s = take()
	}
	fmt.Printf("%d of %d left in %v\n", s.Remaining, s.Limit.Quota, s.Limit.Window)
	// Output:
	// 1 of 2 left in 3s
	// 1 of 20 left in 1m0s
}

// RetryAt returns when a refused charge fits, or Never.
func ExampleDecision_RetryAt() {
	t, _ := newThrottler()
	for _, cost := range []int64{2, 2, 3} {
		d, _ := t.Take(context.Background(), throttler.Charge{Policy: createToken, Key: "alice", Cost: cost})
		switch at := d.RetryAt(); {
		case d.Allowed:
			fmt.Println(cost, "allowed")
		case at.Equal(decision.Never):
			fmt.Println(cost, "can never fit")
		default:
			fmt.Println(cost, "fits in", at.Sub(d.At()))
		}
	}
	// Output:
	// 2 allowed
	// 2 fits in 3s
	// 3 can never fit
}
