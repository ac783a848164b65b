package clock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

// A test moves the clock past the end of a window instead of sleeping.
func ExampleManual() {
	clk := clock.NewManual(time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC))
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clk})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	take := func() {
		d, err := t.Take(context.Background(), core.Charge("alice"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(clk.Now().Format(time.TimeOnly), "allowed:", d.Allowed)
	}
	take()
	take()
	clk.Advance(time.Hour)
	take()
	// Output:
	// 12:00:00 allowed: true
	// 12:00:00 allowed: false
	// 13:00:00 allowed: true
}
