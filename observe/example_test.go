package observe_test

import (
	"context"
	"fmt"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// outcomes counts decisions by policy and outcome.
type outcomes struct {
	observe.Nothing
	counts map[string]int
}

func (o *outcomes) Decided(_ context.Context, e observe.Decided) {
	o.counts[fmt.Sprint(e.Policy, " ", e.Op, " ", e.Outcome)]++
}

func ExampleObserver() {
	seen := &outcomes{counts: map[string]int{}}
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: seen})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	for range 5 {
		_, _ = t.Take(context.Background(), core.Charge("alice"))
	}
	fmt.Println(seen.counts)
	// Output: map[core take allowed:2 core take refused:3]
}
