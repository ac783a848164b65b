package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// unchecked is the quota of a pattern whose decisions may be anything.
const unchecked = 0

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

// redisRows measure decisions over a redis-server on loopback, also with processors that do not
// sleep, and behind a network of 1 ms.
func (l *lab) redisRows() (rows []row) {
	allowed, hot, refused := l.patterns()
	for _, g := range l.goroutines {
		rows = append(rows, l.redisRow("redis", allowed, g, peers.Redis()))
	}
	for _, g := range l.contended {
		rows = append(rows, l.redisRow("redis", hot, g, peers.Redis()), l.redisRow("redis", refused, g, peers.Redis()))
	}
	for _, g := range l.distant {
		rows = append(rows, l.redisRow("network", allowed, g, exclude(peers.Redis(), peers.Variant)))
	}
	bucket := allowed
	bucket.name = "bucket"
	rows = append(rows, l.redisRow("redis", bucket, 64, peers.Buckets()))
	for _, g := range l.awake {
		rows = append(rows, awake(l.redisRow("awake", allowed, g, exclude(peers.Redis(), peers.Variant))))
	}
	return rows
}

// awake measures r while a program of the lowest priority keeps each processor from sleeping. A
// processor that sleeps takes up to 100 µs to wake, which hides what a decision takes when few
// are made.
func awake(r row) row {
	for i, c := range r.cells {
		r.cells[i].measure = func(ctx context.Context) sample {
			defer keepAwake(ctx)()
			return c.measure(ctx)
		}
	}
	return r
}

// keepAwake keeps the processors busy until stop is called or, if this program is killed, for
// some minutes.
func keepAwake(ctx context.Context) (stop func()) {
	var spinning []*exec.Cmd
	for range runtime.NumCPU() {
		c := exec.CommandContext(ctx, "nice", "-n", "19", "sh", "-c", "i=0; while [ $i -lt 100000000 ]; do i=$((i+1)); done")
		check(c.Start())
		spinning = append(spinning, c)
	}
	return func() {
		for _, c := range spinning {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
}

// exclude returns the peers in none of the roles.
func exclude(contenders []peers.Peer, roles ...peers.Role) []peers.Peer {
	return slices.DeleteFunc(contenders, func(p peers.Peer) bool { return slices.Contains(roles, p.Role) })
}

func (l *lab) redisRow(kind string, p pattern, goroutines int, contenders []peers.Peer) row {
	distant := kind == "network"
	return row{name: fmt.Sprintf("%s/%s/g%d", kind, p.name, goroutines), x: float64(goroutines), cells: cellsOf(contenders, func(ctx context.Context, peer peers.Peer) sample {
		server := l.redis("main")
		config := peers.Config{Quota: p.quota, Window: window, Redis: server.Addr, Keys: len(p.keys)}
		server.fill(ctx, peer, p, config)
		if distant {
			config.Redis = l.behindNetwork(server)
		}
		return useLimiter(peer.Open, config, func(limiter *peers.Limiter) sample { return l.load(ctx, limiter, server, p, goroutines, distant) })
	})}
}

// load returns the costs of decisions under a load. The network runs in this process, so the
// client's costs are unknown behind it.
func (l *lab) load(ctx context.Context, limiter *peers.Limiter, s *server, p pattern, goroutines int, distant bool) sample {
	r := must(measure.Load{
		Goroutines: goroutines, Warmup: l.warmup(), Duration: l.sample, Keys: p.keys, Take: limiter.Take, ServerCPU: s.cpu,
	}.Run(ctx))
	check(plausible(r, p))
	costs := decisions(r)
	if distant {
		delete(costs.values, "client_us")
		delete(costs.values, "allocs")
	}
	return costs
}

// plausible returns an error if a limiter's decisions were wrong, which makes its speed
// meaningless. A window that ended during the load allows each key once.
func plausible(r measure.Report, p pattern) error {
	wrong, fair := r.Decisions-r.Allowed, r.Decisions/100
	if p.quota == 1 {
		wrong, fair = r.Allowed, fair+int64(len(p.keys))
	}
	if wrong > fair && p.quota != unchecked {
		return fmt.Errorf("%d of %d decisions were wrong for a quota of %d", wrong, r.Decisions, p.quota)
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// decisions returns a load's report per decision.
func decisions(r measure.Report) sample {
	n := float64(r.Decisions)
	values := map[string]float64{
		"per_s": n / r.Elapsed.Seconds(), "p50_us": micros(r.P50), "p99_us": micros(r.P99),
		"redis_us": micros(r.ServerCPU) / n, "client_us": micros(r.ClientCPU) / n, "allocs": float64(r.Allocs) / n,
	}
	if r.Errors > 0 {
		values["errors_pct"] = 100 * float64(r.Errors) / (float64(r.Errors) + n)
	}
	return sample{values: values}
}
