package main

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/test/bench/peers"
)

// hungRows measure how long a decision takes, and the next one, when Redis accepts connections
// but does not answer: with the client's own settings, and with a context that ends after
// hungDeadline. The peers wait at the same time.
func (l *lab) hungRows() []row {
	contenders := exclude(peers.Redis(), peers.Variant, peers.Ceiling)
	var once sync.Once
	var samples map[string]sample
	return []row{{name: "hung", fixed: true, cells: cellsOf(contenders, func(ctx context.Context, p peers.Peer) sample {
		once.Do(func() { samples = l.hang(ctx, contenders) })
		return samples[p.Name]
	})}}
}

const hungDeadline = 50 * time.Millisecond

func (l *lab) hang(ctx context.Context, contenders []peers.Peer) map[string]sample {
	server, samples := l.redis("hung"), make(map[string]sample)
	var mu sync.Mutex // guards the samples' values
	var waiting, calling sync.WaitGroup
	begin := make(chan struct{}) // closed when the server hangs
	for _, p := range contenders {
		samples[p.Name] = sample{values: make(map[string]float64)}
		for prefix, deadline := range map[string]time.Duration{"": 0, "deadline_": hungDeadline} {
			limiter := must(p.Open(peers.Config{Quota: unlimited, Window: window, Redis: server.Addr, Keys: 1}))
			must(limiter.Take(ctx, "a")) // opens a connection
			waiting.Go(func() {
				<-begin
				took := l.decideHung(ctx, limiter, deadline, &calling)
				mu.Lock()
				defer mu.Unlock()
				for i, metric := range []string{"first_ms", "next_ms"}[:len(took)] {
					samples[p.Name].values[prefix+metric] = float64(took[i]) / float64(time.Millisecond)
				}
			})
		}
	}
	server.Pause()
	close(begin)
	waiting.Wait()
	server.Resume() // now the abandoned calls end
	calling.Wait()
	return samples
}

// decideHung returns how long two decisions took. It abandons a decision that takes longer
// than the lab's patience, and makes no other. calling waits for the calls themselves.
func (l *lab) decideHung(ctx context.Context, limiter *peers.Limiter, deadline time.Duration, calling *sync.WaitGroup) (took []time.Duration) {
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
