package weirlog_test

import (
	"context"
	"log/slog"
	"os"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	weirlog "github.com/weir-go/weir/log"
	"github.com/weir-go/weir/throttler"
)

// A line is for all refusals of a limit in a minute: the next will have their count.
func ExampleNew() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	t := throttler.New(memorybackend.New(nil), &throttler.Options{Observer: weirlog.New(log, nil)})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	for range 500 {
		_, _ = t.Take(context.Background(), core.Charge("alice"))
	}
	// Output: level=INFO msg="rate limit: refusals" policy=core limit=0 count=1
}
