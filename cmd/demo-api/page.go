package main

import (
	"context"
	"maps"
	"net/http"
	"os"
	"slices"

	"github.com/weir-go/weir/cmd/demo-api/page"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// stackSocket is the environment variable with the Unix socket of the program that started the
// servers of make stack. The page asks that program to stop them.
const stackSocket = "WEIR_DEMO_STACK"

// newPage returns the handler of the page for browsers.
func newPage(program *settings, s *config.Stack, caller middleware.Key) http.Handler {
	o := &page.Options{Caller: caller, Stack: os.Getenv(stackSocket), Place: func(ctx context.Context, caller string) page.Place {
		return placeOf(ctx, s, caller)
	}}
	for _, name := range slices.Sorted(maps.Keys(s.Config.Policies)) {
		o.Policies = append(o.Policies, s.Config.Policies[name])
	}
	if program.Tokens.exist() {
		for _, name := range []string{"alice", "bob", "carol", "dave"} {
			o.Callers = append(o.Callers, page.Caller{Name: name, Token: "demo-" + name})
		}
	}
	for _, token := range program.madeUp() {
		name, _ := program.Tokens.subject(token)
		o.Callers = append(o.Callers, page.Caller{Name: name, Token: token})
	}
	return page.New(o)
}

// placeOf returns where the counts of a caller live.
func placeOf(ctx context.Context, s *config.Stack, caller string) page.Place {
	p := page.Place{Backend: s.Config.Backend}
	if s.Rollout != nil {
		p.Backend = s.Rollout.BackendFor(ctx, caller)
	}
	if b := s.Redis[p.Backend]; b != nil {
		p.Shard = b.Locate(throttler.Charge{Policy: s.Config.Policies[corePolicy], Key: caller}).Shard
	}
	return p
}
