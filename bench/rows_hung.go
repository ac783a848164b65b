package main

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/bench/peers"
)

// hungRows are how long a decision takes, and the next one, when Redis takes
// connections and does not answer: with the client's own settings, and with a
// context that ends after hungDeadline. All peers wait at the same time.
func (l *lab) hungRows() []row {
	var all []peers.Peer
	for _, p := range withoutVariants(peers.Redis()) {
		if p.Role != peers.Ceiling {
			all = append(all, p)
		}
	}
	var once sync.Once
	var samples map[string]sample
	var errs map[string]error
	r := row{name: "hung", once: true}
	for _, p := range all {
		r.cells = append(r.cells, cell{p.Name, p.Role, func(ctx context.Context) (sample, error) {
			once.Do(func() { samples, errs = l.hang(ctx, all) })
			return samples[p.Name], errs[p.Name]
		}})
	}
	return []row{r}
}

const hungDeadline = 50 * time.Millisecond

func (l *lab) hang(ctx context.Context, all []peers.Peer) (map[string]sample, map[string]error) {
	samples, errs := make(map[string]sample), make(map[string]error)
	server, err := l.redis("hung")
	if err != nil {
		for _, p := range all {
			errs[p.Name] = err
		}
		return samples, errs
	}
	config := peers.Config{Quota: unlimited, Window: window, Redis: server.Addr, Keys: 1}
	for _, p := range all {
		samples[p.Name] = sample{values: make(map[string]float64)}
	}
	var mu sync.Mutex
	var waiting sync.WaitGroup
	begin := make(chan struct{}) // closed when the server hangs
	for _, p := range all {
		for _, deadline := range []time.Duration{0, hungDeadline} {
			limiter, err := p.Open(config)
			if err == nil {
				_, err = limiter.Take(ctx, "a") // opens a connection
			}
			if err != nil {
				errs[p.Name] = err
				continue
			}
			waiting.Go(func() {
				<-begin
				first, next := l.decideHung(ctx, limiter, deadline)
				mu.Lock()
				defer mu.Unlock()
				kind := ""
				if deadline > 0 {
					kind = "deadline_"
				}
				samples[p.Name].values[kind+"first_ms"] = first
				samples[p.Name].values[kind+"next_ms"] = next
			})
		}
	}
	server.Pause()
	close(begin)
	waiting.Wait()
	server.Resume() // lets the calls end that were given up
	return samples, errs
}

// decideHung returns how long two decisions took, in ms, and at most the
// patience of the lab.
func (l *lab) decideHung(ctx context.Context, limiter *peers.Limiter, deadline time.Duration) (first, next float64) {
	took := make(chan float64, 2)
	go func() {
		defer limiter.Close()
		for range 2 {
			begin := time.Now()
			ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
			if deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, deadline)
			}
			_, _ = limiter.Take(ctx, "a") // whether it is an error is the peer's affair
			cancel()
			took <- time.Since(begin).Seconds() * 1000
		}
	}()
	first, next = float64(l.patience.Milliseconds()), float64(l.patience.Milliseconds())
	for _, to := range []*float64{&first, &next} {
		select {
		case *to = <-took:
		case <-time.After(l.patience):
			return first, next
		case <-ctx.Done():
			return first, next
		}
	}
	return first, next
}
