package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/backendtest"
	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// Histories are too short for long logs, so the scripts here treat a log of three entries as
// long, and give its ring little room.
func TestSequentialHistoriesWithRings(t *testing.T) {
	ShortRings(t)
	const long = 20 * time.Second // a busy machine does not reach it
	c, err := NewClient(&redis.UniversalOptions{
		Addrs: []string{testserver.Redis(t).Addr}, DialTimeout: long, ReadTimeout: long, WriteTimeout: long, PoolTimeout: long,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	opened := 0
	backendtest.Histories(t, func(t *testing.T) driver.Backend {
		opened++
		b, err := New([]Shard{{Name: "a", Primary: c}}, &Options{Prefix: fmt.Sprintf("t%d:", opened), Deadline: long, Margin: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return &moving{Backend: b.WithoutChecks()}
	})
}

// moving is a Backend whose counts have claims in front of them. At every third take, its
// counts leave and arrive again.
type moving struct {
	*Backend
	takes, version int64
}

func (m *moving) placement(ctx context.Context, now int64, charges []throttler.Charge, move bool) (*handoff.Placement, error) {
	const here, elsewhere = 1, 2
	p := &handoff.Placement{Backend: here, Keep: time.Hour, Arrivals: make([]handoff.Arrival, len(charges))}
	for i := range p.Arrivals {
		p.Arrivals[i].Due = true
	}
	m.version++
	if move {
		all, err := m.Release(ctx, handoff.ReleaseRequest{Now: now, Charges: charges, To: elsewhere, Version: m.version, Keep: time.Hour})
		if err != nil {
			return nil, err
		}
		for i, released := range all {
			p.Arrivals[i].State, p.Arrivals[i].ReleaseVersion = released.State, released.ReleaseVersion
		}
		m.version++
	}
	p.Version = m.version
	return p, nil
}

// at calls do without arrivals, like most decisions, and again with arrivals if counts are
// elsewhere.
func (m *moving) at(ctx context.Context, now int64, charges []throttler.Charge, move bool, do func(*handoff.Placement) (driver.Decision, error)) (driver.Decision, error) {
	p, err := m.placement(ctx, now, charges, move)
	if err != nil {
		return driver.Decision{}, err
	}
	d, err := do(&handoff.Placement{Backend: p.Backend})
	if elsewhere := (*handoff.ElsewhereError)(nil); errors.As(err, &elsewhere) {
		return do(p)
	}
	return d, err
}

func (m *moving) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	m.takes++
	return m.at(ctx, r.Now, r.Charges(), m.takes%3 == 0, func(p *handoff.Placement) (driver.Decision, error) { return m.TakeAt(ctx, r, p) })
}

func (m *moving) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return m.at(ctx, r.Now, r.Charges(), false, func(p *handoff.Placement) (driver.Decision, error) { return m.PeekAt(ctx, r, p) })
}

func (m *moving) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	return m.at(ctx, s.Now, s.Charged.Charges(), false, func(p *handoff.Placement) (driver.Decision, error) { return m.SettleAt(ctx, s, p) })
}

// ShortRings makes this process compose scripts that treat a log of three entries as long, and
// give its ring little room, until the test ends.
func ShortRings(t *testing.T) {
	changeShapes(t, withShortRings(t, lua.Decide), shapes.Load().Max)
}

func withShortRings(t *testing.T, compose composer) composer {
	return func(settles bool, charges [][]byte) (string, bool) {
		script, ok := compose(settles, charges)
		if !strings.Contains(script, "GETRANGE") {
			return script, ok
		}
		for _, change := range [][2]string{
			{"FRONT_BYTES, FRONT_END, RINGS = 2560, '2559', 10", "FRONT_BYTES, FRONT_END, RINGS = 60, '59', 10"},
			{"math.floor(r.entries / 2) + 8", "2"},
		} {
			if strings.Count(script, change[0]) != 1 {
				t.Errorf("the script does not have %q once", change[0])
			}
			script = strings.Replace(script, change[0], change[1], 1)
		}
		return script, ok
	}
}
