package main

import (
	"context"
	"fmt"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// fleetCallers is the number of goroutines that request decisions, of all limiters together.
const fleetCallers = 200

// fleetRows measure only weir: a decision's cost for a server when its callers are divided
// among more and more limiters, each with its connections, as in separate processes.
func (l *lab) fleetRows() (rows []row) {
	for _, n := range l.processes {
		measure := func(ctx context.Context) sample { return l.loadFleet(ctx, n) }
		rows = append(rows, row{name: fmt.Sprintf("fleet/%d", n), x: float64(n), cells: []cell{{"weir", peers.Ours, measure}}})
	}
	return rows
}

// loadFleet puts the load of n limiters on a server.
func (l *lab) loadFleet(ctx context.Context, n int) sample {
	server := l.redis("fleet")
	callers := make(chan *peers.Limiter, fleetCallers)
	for i := range n {
		limiter := must(peers.Weir.Open(peers.Config{Quota: unlimited, Window: window, Redis: server.Addr, Keys: len(l.keys)}))
		defer limiter.Close()
		for range (fleetCallers + i) / n { // together fleetCallers
			callers <- limiter
		}
	}
	load := measure.Load{
		Goroutines: fleetCallers, Duration: l.sample, Keys: l.keys, ServerCPU: server.cpu,
		Take: func(ctx context.Context, key string) (bool, error) {
			limiter := <-callers
			defer func() { callers <- limiter }()
			return limiter.Take(ctx, key)
		},
	}
	must(load.Run(ctx)) // connects, and learns the distance of the server
	calls := server.scriptCalls()
	r := must(load.Run(ctx))
	s := decisions(r)
	s.values["per_call"] = float64(r.Decisions) / (server.scriptCalls() - calls)
	s.values["connections"] = server.number("clients", "connected_clients") - 1 // without the admin connection
	return s
}

// scriptCalls returns how many times the server has run a script by its hash.
func (s *server) scriptCalls() (n float64) {
	must(fmt.Sscanf(s.info("commandstats", "cmdstat_evalsha"), "calls=%g", &n))
	return n
}
