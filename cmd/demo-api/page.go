package main

import (
	"context"
	"maps"
	"net/http"
	"os"
	"slices"

	"github.com/weir-go/weir/cmd/demo-api/page"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// stackSocket is the environment's variable by which the program that starts the servers of
// make stack says where it can be asked to stop them.
const stackSocket = "WEIR_DEMO_STACK"

// page returns what browsers see.
func (b *backends) page(caller middleware.Key) http.Handler {
	o := &page.Options{Caller: caller, Place: b.placeOf, Stack: os.Getenv(stackSocket)}
	for _, name := range slices.Sorted(maps.Keys(b.config.policies)) {
		o.Policies = append(o.Policies, b.config.policies[name])
	}
	switch t := b.config.tokens; {
	case t.any:
		for _, name := range []string{"alice", "bob", "carol", "dave"} {
			o.Callers = append(o.Callers, page.Caller{Name: name, Token: "demo-" + name})
		}
	case t.madeUp: // others may be secret
		for _, token := range slices.Sorted(maps.Keys(t.subjects)) {
			o.Callers = append(o.Callers, page.Caller{Name: t.subjects[token], Token: token})
		}
	}
	return page.New(o)
}

// placeOf returns where the counts of a caller live.
func (b *backends) placeOf(ctx context.Context, caller string) page.Place {
	c := &b.config.backends
	p := page.Place{Backend: c.serving}
	if b.stack.Rollout != nil {
		p.Backend = b.stack.Rollout.BackendFor(ctx, caller)
	}
	redis := 0 // of b.redis, which has those that are Redis, in the order of their names
	for _, name := range c.names() {
		isRedis := name == redisName || name == reshardedName
		if isRedis && name == p.Backend {
			p.Shard = b.redis[redis].Locate(throttler.Charge{Policy: b.config.policies[corePolicy], Key: caller}).Shard
		}
		if isRedis {
			redis++
		}
	}
	return p
}
