package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// A pattern is a set of keys and their quota.
type pattern struct {
	name  string
	quota int64
	keys  []string
}

func (l *lab) patterns() (allowed, hot, refused pattern) {
	allowed = pattern{"allowed", unlimited, l.keys}
	hot = pattern{"hot", unlimited, []string{"hot-client-00000000001"}}
	refused = pattern{name: "refused", quota: 1}
	for i := range 16 {
		refused.keys = append(refused.keys, fmt.Sprintf("refused-%013d", i))
	}
	return allowed, hot, refused
}

// redisRows measure decisions over a redis-server on loopback.
func (l *lab) redisRows() []row {
	allowed, hot, refused := l.patterns()
	var rows []row
	for _, g := range l.goroutines {
		rows = append(rows, l.redisRow("redis", allowed, g, peers.Redis()))
	}
	for _, g := range l.contended {
		rows = append(rows,
			l.redisRow("redis", hot, g, peers.Redis()),
			l.redisRow("redis", refused, g, peers.Redis()))
	}
	return rows
}

// networkRows measure the same behind a network of 1 ms.
func (l *lab) networkRows() []row {
	allowed, _, _ := l.patterns()
	var rows []row
	for _, g := range l.distant {
		rows = append(rows, l.redisRow("network", allowed, g, withoutVariants(peers.Redis())))
	}
	return rows
}

func withoutVariants(all []peers.Peer) []peers.Peer {
	var some []peers.Peer
	for _, p := range all {
		if p.Role != peers.Variant {
			some = append(some, p)
		}
	}
	return some
}

func (l *lab) redisRow(kind string, p pattern, goroutines int, all []peers.Peer) row {
	r := row{name: fmt.Sprintf("%s/%s/g%d", kind, p.name, goroutines), x: float64(goroutines)}
	for _, peer := range all {
		r.cells = append(r.cells, cell{peer.Name, peer.Role, func(ctx context.Context) (sample, error) {
			return l.decideInRedis(ctx, peer, p, goroutines, kind == "network")
		}})
	}
	return r
}

func (l *lab) decideInRedis(ctx context.Context, peer peers.Peer, p pattern, goroutines int, distant bool) (sample, error) {
	server, err := l.redis("main")
	if err != nil {
		return sample{}, err
	}
	config := peers.Config{Quota: p.quota, Window: window, Redis: server.Addr, Keys: len(p.keys)}
	if err := server.fill(ctx, peer, p, config); err != nil {
		return sample{}, err
	}
	if distant {
		if config.Redis, err = l.network(server); err != nil {
			return sample{}, err
		}
	}
	limiter, err := peer.Open(config)
	if err != nil {
		return sample{}, err
	}
	defer limiter.Close()
	report, err := measure.Load{
		Goroutines: goroutines, Warmup: l.warmup(), Duration: l.sample,
		Keys: p.keys, Take: limiter.Take, ServerCPU: server.cpu,
	}.Run(ctx)
	if err != nil {
		return sample{}, err
	}
	if err := plausible(report, p); err != nil {
		return sample{}, err
	}
	return decisions(report, distant), nil
}

// plausible returns an error if a limiter's decisions were wrong, which makes its speed
// meaningless. A window that ended during the load allows each key once.
func plausible(r measure.Report, p pattern) error {
	wrong, fair := r.Decisions-r.Allowed, r.Decisions/100
	if p.quota == 1 {
		wrong, fair = r.Allowed, fair+int64(len(p.keys))
	}
	if wrong > fair {
		return fmt.Errorf("%d of %d decisions were wrong for a quota of %d", wrong, r.Decisions, p.quota)
	}
	return nil
}

// decisions returns a load's report per decision. A relay in this process uses CPU time and
// allocates, so their values are left out if relayed.
func decisions(r measure.Report, relayed bool) sample {
	n := float64(r.Decisions)
	values := map[string]float64{
		"per_s":    n / r.Elapsed.Seconds(),
		"p50_us":   float64(r.P50) / float64(time.Microsecond),
		"p99_us":   float64(r.P99) / float64(time.Microsecond),
		"redis_us": float64(r.ServerCPU) / float64(time.Microsecond) / n,
	}
	if !relayed {
		values["client_us"] = float64(r.ClientCPU) / float64(time.Microsecond) / n
		values["allocs"] = float64(r.Allocs) / n
	}
	if r.Errors > 0 {
		values["errors_pct"] = 100 * float64(r.Errors) / float64(r.Errors+r.Decisions)
	}
	return sample{values: values}
}
