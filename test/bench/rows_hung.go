package main

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/test/bench/peers"
)

// hungRows measure how long a decision takes, and the next one, when Redis accepts connections
// but does not answer: with the client's own settings, and with a context that ends after
// hungDeadline. All peers wait at the same time.
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
	var mu sync.Mutex // guards the samples' values
	var waiting, calling sync.WaitGroup
	begin := make(chan struct{}) // closed when the server hangs
	for _, p := range all {
		samples[p.Name] = sample{values: make(map[string]float64)}
		for prefix, deadline := range map[string]time.Duration{"": 0, "deadline_": hungDeadline} {
			limiter, err := p.Open(peers.Config{Quota: unlimited, Window: window, Redis: server.Addr, Keys: 1})
			if err == nil {
				_, err = limiter.Take(ctx, "a") // opens a connection
			}
			if err != nil {
				errs[p.Name] = err
				continue
			}
			waiting.Go(func() {
				<-begin
				took := l.decideHung(ctx, limiter, deadline, &calling)
				mu.Lock()
				defer mu.Unlock()
				for i, which := range []string{"first_ms", "next_ms"}[:len(took)] {
					samples[p.Name].values[prefix+which] = float64(took[i]) / float64(time.Millisecond)
				}
			})
		}
	}
	server.Pause()
	close(begin)
	waiting.Wait()
	server.Resume() // now the abandoned calls end
	calling.Wait()
	return samples, errs
}

// decideHung returns how long two decisions took. It abandons a decision that takes longer
// than the lab's patience, and makes no other. calling waits for the calls themselves.
func (l *lab) decideHung(ctx context.Context, limiter *peers.Limiter, deadline time.Duration, calling *sync.WaitGroup) []time.Duration {
	ends := make(chan time.Duration, 2)
	calling.Go(func() {
		defer limiter.Close()
		for range cap(ends) {
			ctx, cancel := context.WithoutCancel(ctx), func() {}
			if deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, deadline)
			}
			begin := time.Now()
			_, _ = limiter.Take(ctx, "a") // the peer decides whether that is an error
			ends <- time.Since(begin)
			cancel()
		}
	})
	var took []time.Duration
	for range cap(ends) {
		select {
		case d := <-ends:
			took = append(took, d)
		case <-time.After(l.patience):
			return append(took, l.patience)
		case <-ctx.Done():
			return took
		}
	}
	return took
}
