package memorybackend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// An invalid charge is an error even for a key that has a window, and charges nothing.
func TestTakeOfAWindowValidates(t *testing.T) {
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(time.Unix(1e9, 0))})
	valid := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	take := func(c throttler.Charge) (throttler.Decision, error) { return th.Take(context.Background(), c) }
	if _, err := take(valid.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	limit := valid.Limits[0]
	policy := func(name string, change func(*throttler.Limit)) *throttler.Policy {
		l := limit
		change(&l)
		return &throttler.Policy{Name: name, Limits: []throttler.Limit{l}}
	}
	as := func(*throttler.Limit) {}
	for name, c := range map[string]throttler.Charge{
		"no policy":        {Key: "alice"},
		"no name":          policy("", as).Charge("alice"),
		"name":             policy("core ", as).Charge("alice"),
		"no limits":        (&throttler.Policy{Name: "core"}).Charge("alice"),
		"limits alike":     (&throttler.Policy{Name: "core", Limits: []throttler.Limit{limit, limit}}).Charge("alice"),
		"no window":        policy("core", func(l *throttler.Limit) { l.Window = 0 }).Charge("alice"),
		"part of a ms":     policy("core", func(l *throttler.Limit) { l.Window++ }).Charge("alice"),
		"negative window":  policy("core", func(l *throttler.Limit) { l.Window = -l.Window }).Charge("alice"),
		"no quota":         policy("core", func(l *throttler.Limit) { l.Quota = 0 }).Charge("alice"),
		"quota":            policy("core", func(l *throttler.Limit) { l.Quota = quota.MaxQuota + 1 }).Charge("alice"),
		"burst":            policy("core", func(l *throttler.Limit) { l.Burst = 1 }).Charge("alice"),
		"max wait":         policy("core", func(l *throttler.Limit) { l.MaxWait = time.Second }).Charge("alice"),
		"algorithm":        policy("core", func(l *throttler.Limit) { l.Algorithm = 99 }).Charge("alice"),
		"negative cost":    {Policy: valid, Key: "alice", Cost: -1},
		"cost above a max": {Policy: valid, Key: "alice", Cost: quota.MaxQuota + 1},
	} {
		if d, err := take(c); !errors.Is(err, throttler.ErrInvalid) || d.NumLimits() != 0 {
			t.Errorf("%s: %v, %v; want an error that wraps ErrInvalid", name, d, err)
		}
	}
	d, err := take(valid.Charge("alice"))
	if err != nil || d.Limit(0).Used != 2 {
		t.Errorf("%v, %v; want 2 used, of the two valid takes", d, err)
	}
}
