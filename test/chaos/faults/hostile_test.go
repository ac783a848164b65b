package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/chaos/internal/meter"
	"github.com/weir-go/weir/throttler"
)

// spoil changes bytes of some answers at random, as a broken server might: in numbers, in
// lengths, and in the types of replies.
func spoil(seed uint64) func(answer []byte) (lose bool) {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	return func(answer []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(4) > 0 {
			return false
		}
		for range 1 + random.IntN(3) {
			i := random.IntN(len(answer))
			switch random.IntN(4) {
			case 0:
				answer[i] ^= 1 << random.IntN(8)
			case 1:
				answer[i] = byte(random.IntN(256))
			case 2:
				answer[i] = "0123456789"[random.IntN(10)] // wrong lengths, but not absurd ones
			case 3:
				answer[i] = "+-:$*\r\n_#,(!=%~>|"[random.IntN(17)]
			}
		}
		return random.IntN(20) == 0
	}
}

func TestHostileRedis(t *testing.T) {
	server := testserver.Redis(t)
	testHostile(t, "redis", server.Addr)
}

func TestHostileMemcached(t *testing.T) {
	server := testserver.Memcached(t)
	testHostile(t, "memcached", server.Addr)
}

// Whatever a server answers, each decision returns in time: with an error of the contract, or
// with a consistent answer.
func testHostile(t *testing.T, store, addr string) {
	r := &rig{random: testseed.Of(t)}
	th := throttler.New(r.open(t, store, testserver.Relay(t, addr, spoil(r.random))), nil)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{
		{Quota: 100, Window: time.Hour},
		{Quota: 100, Window: time.Minute, Algorithm: throttler.TokenBucket},
	}}
	one := &throttler.Policy{Name: "one", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}
	c := &calls{Meter: meter.Start()}
	defer c.Stop()
	var mu sync.Mutex
	answered, failed := 0, 0
	var all sync.WaitGroup
	for g := range 16 {
		random := rand.New(rand.NewPCG(r.random, uint64(g)+2))
		all.Go(func() {
			for range 60 {
				charges := []throttler.Charge{one.Charge(fmt.Sprint("key ", random.IntN(40)))}
				if random.IntN(2) == 0 {
					charges = []throttler.Charge{p.Charge("shared"), one.Charge(fmt.Sprint("key ", random.IntN(40)))}
				}
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				end := c.start()
				do := th.Take
				if random.IntN(4) == 0 {
					do = th.Peek
				}
				d, err := do(ctx, charges...)
				end()
				cancel()
				mu.Lock()
				if err == nil {
					answered++
				} else {
					failed++
				}
				mu.Unlock()
				if err != nil {
					if errors.Is(err, throttler.ErrInvalid) || !errors.Is(err, throttler.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v", err)
					}
					time.Sleep(time.Millisecond)
					continue
				}
				refused := false
				for i, s := range d.Limits() {
					refused = refused || s.Refused
					if s.Used < 0 || s.Remaining < 0 || s.Remaining > s.Limit.Capacity() || s.ResetAt.Before(d.At()) || s.Refused && !s.RetryAt.After(d.At()) {
						t.Errorf("limit %d of an answer makes no sense: %+v", i, s)
					}
				}
				if d.Allowed == refused {
					t.Errorf("allowed %v: %v", d.Allowed, d)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d decisions were answered, %d failed", answered, failed)
	if c.latest > lateness {
		t.Errorf("a call returned %v after its deadline, without what the machine stalled meanwhile", c.latest)
	}
}
