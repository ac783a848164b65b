package refusals_test

import (
	"context"
	"fmt"
	"log"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/throttler"
)

// Repeated requests of a refused client are refused from memory. A refund ends
// that at once.
func Example() {
	ctx := context.Background()
	counts := memorybackend.NewDefault() // in a program of several processes, Redis or Memcached
	backend, err := refusals.New(counts, &refusals.Options{MaxAge: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	clk := clock.NewManual(time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC))
	t := throttler.New(backend, &throttler.Options{Clock: clk})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	take := func() throttler.Decision {
		d, err := t.Take(ctx, core.Charge("alice"))
		if err != nil {
			log.Fatal(err)
		}
		return d
	}

	first := take()
	for range 1000 {
		take()
	}
	d := take()
	fmt.Println("allowed:", d.Allowed, "- retry at", d.RetryAt().Format(time.TimeOnly))
	s := backend.Stats()
	fmt.Println(s.Answered, "takes refused from memory,", s.Asked, "asked")

	if _, err := t.Refund(ctx, first); err != nil {
		log.Fatal(err)
	}
	fmt.Println("allowed:", take().Allowed)
	// Output:
	// allowed: false - retry at 13:00:00
	// 1000 takes refused from memory, 2 asked
	// allowed: true
}
