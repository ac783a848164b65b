package rollout_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/memprovider"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/throttler"
)

// A change of the flag moves a client in the middle of its window.
func Example() {
	ctx := context.Background()
	setFlag := func(backend string) {
		flags := memprovider.NewInMemoryProvider(map[string]memprovider.InMemoryFlag{rollout.DefaultFlag: {
			State:          memprovider.Enabled,
			Variants:       map[string]any{"here": backend},
			DefaultVariant: "here",
		}})
		if err := openfeature.SetProviderAndWait(flags); err != nil {
			log.Fatal(err)
		}
	}
	setFlag("old")
	backend, err := rollout.New(map[string]handoff.Store{
		"old": memorybackend.NewDefault(),
		"new": memorybackend.NewDefault(),
	}, "old", openfeature.NewClient("throttler"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()

	clk := clock.NewManual(time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC))
	t := throttler.New(backend, &throttler.Options{Clock: clk})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	take := func() {
		d, err := t.Take(ctx, core.Charge("alice"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("used", d.Limit(0).Used, "until", d.Limit(0).ResetAt.Format(time.TimeOnly))
	}
	take()
	setFlag("new")
	clk.Advance(10 * time.Minute)
	take()
	// Output:
	// used 1 until 13:00:00
	// used 2 until 13:00:00
}
