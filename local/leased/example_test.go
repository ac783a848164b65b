package leased_test

import (
	"context"
	"fmt"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
)

// Two processes share a quota of 100, and ask the store 20 times for 300 decisions.
func Example() {
	store := memorybackend.NewDefault() // in production, a redisbackend.Backend
	now := clock.NewManual(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}

	allowed, asked := 0, int64(0)
	for range 2 {
		backend, err := leased.New(store, &leased.Options{Clock: now})
		if err != nil {
			fmt.Println(err)
			return
		}
		front, err := refusals.New(backend, nil) // the last 200 are refused
		if err != nil {
			fmt.Println(err)
			return
		}
		t := throttler.New(front, &throttler.Options{Clock: now})
		for range 150 {
			d, err := t.Take(context.Background(), core.Charge("alice"))
			if err != nil {
				fmt.Println(err)
				return
			}
			if d.Allowed {
				allowed++
			}
		}
		asked += backend.Stats().Asked
		if err := backend.Close(context.Background()); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("allowed", allowed, "fewer calls than decisions:", asked < 100)
	// Output: allowed 100 fewer calls than decisions: true
}

func ExampleNew() {
	redis := memorybackend.NewDefault() // in place of the redisbackend.Backend that all processes share
	backend, err := leased.New(redis, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close(context.Background())
	t := throttler.New(backend, nil)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}
	d, err := t.Take(context.Background(), core.Charge("alice"))
	fmt.Println(d.Limit(0).Remaining, err)
	// Output: 99 <nil>
}
