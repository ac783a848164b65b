package throttler_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// Three pauses of two seconds at once last two seconds, not six. A process that already has
// starts in the next 100 ms when another process pauses uses them.
func TestPausesAreNoSum(t *testing.T) {
	for name, limit := range second {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := memorybackend.NewDefault()
				limit.Quota, limit.Burst = 10, 0
				policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{limit}}
				ctx, leave := context.WithCancel(t.Context())
				var all starts
				var running sync.WaitGroup
				var processes [3]*throttler.Throttler
				for i := range processes {
					processes[i] = throttler.New(backend, nil)
					for range 5 {
						running.Go(func() {
							for {
								if _, err := processes[i].Wait(ctx, policy.Charge("key")); err != nil {
									return
								}
								all.add(i)
							}
						})
					}
				}
				time.Sleep(3050 * time.Millisecond)
				until := time.Now().Add(2 * time.Second)
				for range 3 {
					if err := processes[0].Pause(ctx, until, policy.Charge("key")); err != nil {
						t.Error(err)
					}
				}
				so := func() []int { // the processes of the starts so far
					all.mu.Lock()
					defer all.mu.Unlock()
					return slices.Clone(all.order)
				}
				before := len(so())
				time.Sleep(2*time.Second - 1)
				synctest.Wait()
				early := [3]int{}
				for _, i := range so()[before:] {
					early[i]++
				}
				if early[0] > 0 || early[1] > 2 || early[2] > 2 {
					t.Errorf("starts in the pause, by process: %v", early)
				}
				before = len(so())
				time.Sleep(time.Second)
				synctest.Wait()
				if after := len(so()) - before; after < 8 {
					t.Errorf("%d starts in the second after the pause", after)
				}
				leave()
				running.Wait()
			})
		})
	}
}

// Wait fails at once if a pause ends after its deadline.
func TestWaitForAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(apart{memorybackend.NewDefault()}, nil)
		policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 10, Window: time.Second}}}
		began := time.Now()
		charges := []throttler.Charge{policy.Charge("alice"), policy.Charge("bob")}
		if err := th.Pause(t.Context(), began.Add(time.Minute), charges...); err != nil {
			t.Fatal(err)
		}
		for _, c := range charges {
			ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
			defer cancel()
			if _, err := th.Wait(ctx, c); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 0 {
				t.Errorf("%s: %v, after %v", c.Key, err, time.Since(began))
			}
		}
		if _, err := th.Wait(t.Context(), charges...); err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v, after %v", err, time.Since(began))
		}
		if err := th.Pause(t.Context(), began.Add(2*quota.MaxWindow), charges...); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("a pause of two years: %v", err)
		}
		if err := th.Pause(t.Context(), began, charges...); err != nil {
			t.Errorf("a pause that is over: %v", err)
		}
	})
}

// charged fails if it is asked to settle no charges: for Redis, no server would be found.
type charged struct {
	driver.Backend
	t *testing.T
}

func (b charged) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if len(s.Charged.Charges()) == 0 {
		b.t.Error("a settlement of no charges")
	}
	return b.Backend.Settle(ctx, s)
}

// A pause of an unlimited key does nothing. Its parent is not paused, as with other keys.
func TestPauseOfWhatIsLeftOut(t *testing.T) {
	for parent, key := range map[string]string{"": "", "orgs": "acme"} {
		th, edit := withTree(t, charged{memorybackend.NewDefault(), t})
		log := policy("log", throttler.Limit{Quota: 1, Window: time.Hour, Algorithm: throttler.SlidingLog})
		edit(func(e *policies.Edit) {
			e.Set(policy("orgs", per(9, time.Hour)))
			e.Set(under(log, parent, key))
			e.Override(policies.Override{Policy: "log", Key: "k", Unlimited: true})
		})
		if err := th.Pause(t.Context(), t0.Add(time.Hour), log.Charge("k")); err != nil {
			t.Error(err)
		}
		if d := take(t, th, log.Charge("k")); !d.Allowed {
			t.Errorf("%v; want no pause", d)
		}
	}
}
