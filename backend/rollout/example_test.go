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
	"github.com/weir-go/weir/backend/rollout"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

// The SDK's in-memory provider moves a client in the middle of its window.
func Example() {
	ctx := context.Background()
	flag := func(backend string) map[string]memprovider.InMemoryFlag {
		return map[string]memprovider.InMemoryFlag{rollout.DefaultFlag: {
			State:          memprovider.Enabled,
			Variants:       map[string]any{"here": backend},
			DefaultVariant: "here",
		}}
	}
	flags := memprovider.NewInMemoryProvider(flag("old"))
	if err := openfeature.SetProviderAndWait(flags); err != nil {
		log.Fatal(err)
	}
	backend, err := rollout.New(rollout.Options{
		Backends: map[string]handoff.Store{"old": memorybackend.New(nil), "new": memorybackend.New(nil)},
		Default:  "old",
		Client:   openfeature.NewClient("throttler"),
		Events:   true,
	})
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
	flags.UpdateFlags(flag("new"))
	clk.Advance(10 * time.Minute)
	take()
	// Output:
	// used 1 until 13:00:00
	// used 2 until 13:00:00
}
