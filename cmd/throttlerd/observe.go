package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/cmd/throttlerd/internal/tracing"
	"github.com/weir-go/weir/config"
	weirdebug "github.com/weir-go/weir/contrib/debug"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
)

// observation observes the service: its log, the page for operators, and traces.
type observation struct {
	observe.Observer
	page    *weirdebug.Observer
	tracing *tracing.Tracing
}

func newObservation(ctx context.Context, s *settings.Settings, log *slog.Logger) (*observation, error) {
	t, err := tracing.New(ctx, &s.Tracing)
	if err != nil {
		return nil, cmdline.Usage(err)
	}
	page := &weirdebug.Options{ClientPage: "/debug/weir/client"}
	if s.ShowKeys {
		page.Label = func(_, key string) string { return strings.Clone(key) }
	}
	o := &observation{page: weirdebug.New(page), tracing: t}
	o.Observer = observe.All(weirlog.New(log, &weirlog.Options{ShowKeys: s.ShowKeys}), o.page, t.Observer)
	return o, nil
}

// show adds the statistics of a stack to the page.
func (o *observation) show(s *config.Stack) {
	for name, stats := range s.Stats() {
		o.page.Stats(name, stats)
	}
}

// close sends the remaining traces.
func (o *observation) close(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := o.tracing.Close(ctx); err != nil {
		log.Warn("the last traces were not sent", "error", err)
	}
}
