package guard_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/guard"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/shares"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// where is a kind of backend that verbs are tried on.
type where struct {
	name  string
	limit throttler.Limit                                                         // of the policy
	open  func(t *testing.T, p *throttler.Policy) (b driver.Backend, wrong error) // wrong is the construction's error
}

var (
	ofWindow = throttler.Limit{Quota: 10, Window: time.Hour} // it begins with the first charge, not with an hour
	ofBucket = throttler.Limit{Quota: 10, Window: time.Hour, Algorithm: throttler.TokenBucket}
)

func wheres() []where {
	inMemory := func(*testing.T) driver.Backend { return memorybackend.NewDefault() }
	around := func(options func(t *testing.T, p *throttler.Policy) *guard.Options) func(*testing.T, *throttler.Policy) (driver.Backend, error) {
		return func(t *testing.T, p *throttler.Policy) (driver.Backend, error) {
			s, err := guard.New(inMemory(t), options(t, p))
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = s.Close(context.Background()) })
			return s.Backend, nil
		}
	}
	return []where{
		{"memory", ofWindow, func(t *testing.T, _ *throttler.Policy) (driver.Backend, error) { return inMemory(t), nil }},
		{"Redis", ofWindow, openRedis},
		{"Memcached", ofWindow, openMemcached},
		{"refusals", ofWindow, around(func(*testing.T, *throttler.Policy) *guard.Options {
			return &guard.Options{Refusals: &refusals.Options{}}
		})},
		{"fallback", ofWindow, around(func(*testing.T, *throttler.Policy) *guard.Options {
			return &guard.Options{Fallback: &fallback.Options{OnFailure: fallback.Local, Processes: 3}}
		})},
		{"shadow", ofWindow, around(func(*testing.T, *throttler.Policy) *guard.Options {
			return &guard.Options{Shadow: &guard.Shadow{Candidate: memorybackend.NewDefault()}}
		})},
		{"rollout", ofWindow, around(func(t *testing.T, _ *throttler.Policy) *guard.Options {
			return &guard.Options{Rollout: &guard.Rollout{Name: "one", Others: map[string]handoff.Store{"other": memorybackend.NewDefault()}, Client: flag(t, "other")}}
		})},
		{"leased", ofWindow, around(func(_ *testing.T, p *throttler.Policy) *guard.Options {
			return &guard.Options{Levels: &guard.Levels{Policies: map[*quota.Policy]consistency.Level{p: consistency.Leased}, Leased: &leased.Options{Busy: 1}}}
		})},
		{"synced", ofBucket, around(func(t *testing.T, p *throttler.Policy) *guard.Options {
			return &guard.Options{Levels: &guard.Levels{Policies: map[*quota.Policy]consistency.Level{p: consistency.Synced}, Synced: &guard.Synced{Roots: silentRoot(t)}}}
		})},
		{"shares", ofBucket, openShares},
	}
}

func openRedis(t *testing.T, _ *throttler.Policy) (driver.Backend, error) {
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close(); _ = client.Close() })
	return b, nil
}

func openMemcached(t *testing.T, _ *throttler.Policy) (driver.Backend, error) {
	client := memcachedbackend.NewClient(testserver.Memcached(t).Addr)
	b, err := memcachedbackend.New([]memcachedbackend.Server{{Name: "a", Client: client}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close(); _ = client.Close() })
	return b, nil
}

func openShares(t *testing.T, p *throttler.Policy) (driver.Backend, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	self := listener.Addr().String()
	transport, err := shares.NewHTTP(self, []byte("32 random bytes or more, from a file"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { transport.Close(); _ = listener.Close() })
	b, err := shares.New(self, shares.List{Epoch: 1, Members: []string{self}}, transport, []*throttler.Policy{p}, nil)
	if err != nil {
		return nil, err
	}
	t.Cleanup(b.Close)
	transport.Serve(listener, b.Receive)
	for !b.Status().Valid {
		time.Sleep(time.Millisecond)
	}
	return b, nil
}

// verb is an operation on a throttler, and on another throttler with the same counts. If limit is
// not nil, it replaces the limit of where.
type verb struct {
	name  string
	limit *throttler.Limit
	ask   func(ctx context.Context, t, other *throttler.Throttler, p *throttler.Policy) error
}

// expected returns an error that doesn't wrap ErrInvalid, or nil if ok.
func expected(ok bool, what string, got any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%s: %v", what, got)
}

// inMode returns a test that takes 4, then 8 in mode m.
func inMode(m quota.Mode, allowed bool, used int64) func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
	return func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
		if _, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "k", Cost: 4}); err != nil {
			return err
		}
		d, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "k", Cost: 8, Mode: m})
		if err != nil || d.Allowed != allowed {
			return errors.Join(err, expected(d.Allowed == allowed, "allowed", d.Allowed))
		}
		d, err = t.Peek(ctx, p.Charge("k"))
		return errors.Join(err, expected(err != nil || d.Limit(0).Used == used, "used", d.Limits()))
	}
}

func verbs() []verb {
	return []verb{
		{"`Take`, and `Peek`", nil, inMode(quota.Enforce, false, 4)},
		{"mode `Record`", nil, inMode(quota.Record, true, 12)},
		{"mode `Check`", nil, inMode(quota.Check, false, 4)},
		{"mode `AtMost`", nil, inMode(quota.AtMost, true, 10)},
		{"mode `Capped`", nil, inMode(quota.Capped, false, 4)},
		{"several partitions", nil, func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
			d, err := t.Take(ctx, p.Charge("a"), throttler.Charge{Policy: p, Key: "b", Cost: 11})
			if err != nil {
				return err
			}
			return expected(!d.Allowed && d.Limit(0).Used == 0, "a refusal charges the other partition", d.Limits())
		}},
		{"`Refund`, `Settle`", nil, func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
			d, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "k", Cost: 4})
			if err != nil {
				return err
			}
			after, err := t.Settle(ctx, d, 6)
			return errors.Join(err, expected(err != nil || after.Limit(0).Used == 6, "settled", after.Limits()))
		}},
		{"`Receipt`, `Open`", nil, func(ctx context.Context, t, other *throttler.Throttler, p *throttler.Policy) error {
			d, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "k", Cost: 4})
			if err != nil {
				return err
			}
			text, err := t.Receipt(d)
			if err != nil {
				return err
			}
			opened, err := other.Open(text)
			if err != nil {
				return fmt.Errorf("a receipt that was made cannot be opened: %s", err.Error())
			}
			if _, err = other.Settle(ctx, opened, 1); err != nil {
				return fmt.Errorf("a receipt that was made cannot be settled: %s", err.Error())
			}
			_, err = t.Refund(ctx, d)
			return expected(errors.Is(err, throttler.ErrSettled), "a refund after it", err)
		}},
		{"`Reset`", nil, func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
			if _, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "k", Cost: 10}); err != nil {
				return err
			}
			if err := t.Reset(ctx, p.Charge("k")); err != nil {
				return err
			}
			d, err := t.Peek(ctx, p.Charge("k"))
			return errors.Join(err, expected(err != nil || d.Limit(0).Used == 0, "after a reset", d.Limits()))
		}},
		{"`Wait`", nil, func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
			if _, err := t.Wait(ctx, throttler.Charge{Policy: p, Key: "k", Cost: 10}); err != nil {
				return err
			}
			soon, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := t.Wait(soon, p.Charge("k")) // it would start in an hour
			return expected(errors.Is(err, context.DeadlineExceeded), "one that comes too late", err)
		}},
		{"`Pause`", nil, func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
			if err := t.Pause(ctx, t.Clock().Now().Add(time.Minute), p.Charge("k")); err != nil {
				return err
			}
			d, err := t.Take(ctx, p.Charge("k"))
			return errors.Join(err, expected(!d.Allowed, "paused", d.Allowed))
		}},
		{"limits in flight: `Hold`, `Renew`", &throttler.Limit{Quota: 1, Window: time.Hour, Algorithm: throttler.InFlight}, func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
			d, err := t.Take(ctx, p.Charge("k"))
			if err != nil {
				return err
			}
			if _, err := t.Renew(ctx, d); err != nil {
				return err
			}
			if second, err := t.Take(ctx, p.Charge("k")); err != nil || second.Allowed {
				return errors.Join(err, expected(!second.Allowed, "a second", second.Limits()))
			}
			if _, err := t.Settle(ctx, d); err != nil {
				return err
			}
			d, err = t.Take(ctx, p.Charge("k"))
			return errors.Join(err, expected(d.Allowed, "after it has ended", d.Limits()))
		}},
		{"days, weeks and months", &throttler.Limit{Quota: 1, Calendar: quota.Calendar{Period: quota.Month, Day: 31}}, func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
			d, err := t.Take(ctx, p.Charge("k"))
			if err != nil {
				return err
			}
			return expected(d.Limit(0).ResetAt.Equal(p.Limits[0].Calendar.End(d.At())), "the month ends", d.Limit(0).ResetAt)
		}},
		{"plans, and other limits of a table", nil, func(ctx context.Context, t, _ *throttler.Throttler, p *throttler.Policy) error {
			d, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "k", Cost: 4}, throttler.Charge{Policy: p, Key: "pro", Cost: 15}.Within("k"))
			if err != nil {
				return err
			}
			return expected(d.Allowed, "15 of a plan of 20", d.Limits())
		}},
	}
}

// TestVerbs checks that each verb works everywhere, or returns an error that wraps ErrInvalid, and
// that docs/reference/verbs.md says so: "yes", "at the call", or "at the start" if the backend can't be
// constructed for such a policy.
func TestVerbs(t *testing.T) {
	all := wheres()
	var table strings.Builder
	fmt.Fprint(&table, "| |")
	for _, w := range all {
		fmt.Fprintf(&table, " %s |", w.name)
	}
	fmt.Fprintf(&table, "\n|---|%s\n", strings.Repeat("---|", len(all)))
	for _, v := range verbs() {
		fmt.Fprintf(&table, "| %s |", v.name)
		for _, w := range all {
			said := "failed"
			t.Run(v.name+", "+w.name, func(t *testing.T) { said = outcomeOf(t, v, w) })
			fmt.Fprintf(&table, " %s |", said)
		}
		fmt.Fprintln(&table)
	}
	page, err := os.ReadFile("../docs/reference/verbs.md")
	if err != nil || !strings.Contains(string(page), table.String()) {
		t.Errorf("docs/reference/verbs.md must have this table: %v\n%s", err, table.String())
	}
}

func outcomeOf(t *testing.T, v verb, w where) string {
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{w.limit}}
	if v.limit != nil {
		p.Limits = []throttler.Limit{*v.limit}
	}
	b, err := w.open(t, p)
	if err != nil {
		if !errors.Is(err, throttler.ErrInvalid) {
			t.Fatal(err)
		}
		return "at the start"
	}
	var plans policies.Table
	err = plans.Source("code").Edit(func(e *policies.Edit) {
		more := w.limit
		more.Quota = 20
		e.Override(policies.Override{Policy: "core", Key: "pro", Limits: []throttler.Limit{more}})
	})
	if err != nil {
		t.Fatal(err)
	}
	options := &throttler.Options{ReceiptKey: []byte("a secret of the test"), Policies: &plans}
	switch err := v.ask(t.Context(), throttler.New(b, options), throttler.New(b, options), p); {
	case errors.Is(err, throttler.ErrInvalid):
		t.Log(err)
		return "at the call"
	case err != nil:
		t.Error(err)
		return "failed"
	}
	return "yes"
}
