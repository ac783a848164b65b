package redisbackend_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/quota"
)

// aheadClock is a clock that is ahead of another.
type aheadClock struct {
	clock.Clock
	ahead time.Duration
}

func (s *aheadClock) Now() time.Time { return s.Clock.Now().Add(s.ahead) }

// timed is a hook that makes a client's server report the time of a clock.
type timed struct{ clock.Clock }

func (timed) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (timed) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h timed) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if cmd, ok := cmd.(*redis.TimeCmd); ok && cmd.Err() == nil {
				cmd.SetVal(h.Now())
			}
		}
		return err
	}
}

// A world is a time, and servers with clocks relative to it.
type world struct {
	*clock.Manual
	shards []redisbackend.Shard
	clocks []*aheadClock // the servers'
	log    bytes.Buffer
}

func newWorld(t *testing.T, servers int) *world {
	w := &world{Manual: clock.NewManual(t0)}
	for i := range servers {
		c := newClient(t, testserver.Redis(t).Addr)
		w.clocks = append(w.clocks, &aheadClock{Clock: w})
		c.AddHook(timed{w.clocks[i]})
		w.shards = append(w.shards, redisbackend.Shard{Name: string(rune('a' + i)), Primary: c})
	}
	return w
}

// A proc is a process with its own clock, which decides by the corrected clock.
type proc struct {
	*redisbackend.Backend
	throttler *throttler.Throttler
	own       *aheadClock
	clk       clock.Clock
}

func (w *world) process(t *testing.T, ahead time.Duration) *proc {
	p := &proc{own: &aheadClock{w, ahead}}
	p.Backend = newBackend(t, w.shards, &redisbackend.Options{Clock: p.own, Observer: weirlog.New(slog.New(slog.NewTextHandler(&w.log, nil)), nil)})
	p.clk = p.Clock()
	p.throttler = throttler.New(p.Backend, &throttler.Options{Clock: p.clk})
	p.Check()
	return p
}

// ahead returns how far the corrected clock is ahead of the world's.
func (p *proc) ahead() time.Duration {
	return p.clk.Now().Sub(p.own.Clock.Now().Truncate(time.Millisecond))
}

func TestCorrectedClock(t *testing.T) {
	w := newWorld(t, 3)
	const s = time.Second
	for _, test := range []struct {
		own     time.Duration
		servers [3]time.Duration
		want    time.Duration
	}{
		{0, [3]time.Duration{}, 0},
		{5 * s, [3]time.Duration{}, 0},
		{-5 * s, [3]time.Duration{}, 0},
		{10 * s, [3]time.Duration{}, 0},
		{11 * s, [3]time.Duration{}, 11 * s}, // too far off to be corrected
		{0, [3]time.Duration{-s, 0, 5 * s}, 0},
		{2 * s, [3]time.Duration{-s, -s, 5 * s}, -s},
		{s, [3]time.Duration{time.Hour, 0, 0}, 0}, // one server an hour off moves nothing
		{s, [3]time.Duration{time.Hour, 0, -time.Hour}, 0},
		{s, [3]time.Duration{time.Hour, time.Hour, time.Hour}, s}, // nor do all of them
		{0, [3]time.Duration{0, s, time.Hour}, s / 2},
	} {
		for i, c := range w.clocks {
			c.ahead = test.servers[i]
		}
		p := w.process(t, test.own)
		if got := p.ahead(); got != test.want {
			t.Errorf("own clock %v ahead, servers' %v: corrected is %v ahead, want %v", test.own, test.servers, got, test.want)
		}
		for _, state := range p.Servers() {
			if want := test.own - test.servers[state.Shard[0]-'a']; !state.SkewKnown || state.Skew != want {
				t.Errorf("own clock %v ahead: server %s, skew %v, want %v", test.own, state.Shard, state.Skew, want)
			}
		}
	}
}

// dials is a hook that makes each dial take that long by a world's clock.
type dials struct {
	*clock.Manual
	take time.Duration
}

func (d dials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.Advance(d.take)
		return next(ctx, network, addr)
	}
}
func (dials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (dials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A round trip that dials can't measure a clock: the way back is not half of it.
func TestTheFirstCheckCorrectsTheClock(t *testing.T) {
	w := newWorld(t, 1)
	w.shards[0].Primary.(*redis.Client).AddHook(dials{w.Manual, 14 * time.Millisecond})
	if ahead := w.process(t, 3*time.Second).ahead(); ahead != 0 {
		t.Errorf("after the first check the clock is %v ahead, of a server that took 14 ms to reach", ahead)
	}
}

func TestCorrectedClockDoesNotGoBack(t *testing.T) {
	w := newWorld(t, 1)
	p := w.process(t, 0)
	at := func(want time.Duration, what string) {
		t.Helper()
		if got := p.clk.Now().Sub(t0.Truncate(time.Millisecond)); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	const s = time.Second
	at(0, "at first")
	w.Advance(s)
	at(s, "time passes")
	w.clocks[0].ahead = -3 * s
	p.Check()
	at(s, "the server's clock was set back")
	w.Advance(4 * s)
	at(2*s, "until it is there again")
	p.own.ahead = 6 * s // not monotonic, until the next check
	p.Check()
	at(2*s, "the own clock stepped ahead")
	w.Set(t0)
	at(2*s, "the own clock steps back")
	p.Check()
	w.Advance(6 * s)
	p.Check()
	at(3*s, "and is corrected")
	p.own.ahead = time.Hour
	p.Check()
	at(time.Hour+6*s, "an hour off it is the process' own")
	p.own.ahead = 0
	p.Check()
	at(3*s, "so large a step back is one")
}

func TestCorrectedClockOverARealServer(t *testing.T) {
	server := testserver.Redis(t)
	own := &aheadClock{Clock: clock.System{}, ahead: 4 * time.Second}
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: newClient(t, server.Addr)}}, &redisbackend.Options{Clock: own})
	clk := b.Clock()
	b.Check()
	if ahead := time.Until(clk.Now()); ahead.Abs() > time.Second {
		t.Errorf("the corrected clock is %v ahead, of a server on this machine", ahead)
	}
}

func TestAServerAnHourOffMovesNothing(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		w := newWorld(t, 1)
		p := w.process(t, 0)
		charge := policy("core", throttler.Limit{Quota: 10, Window: time.Minute}).Charge("alice")
		for i := range int64(6) { // from the fourth on, the server's clock is off
			d, err := p.throttler.Take(t.Context(), charge)
			if err != nil || d.Limit(0).Used != i+1 || !d.Limit(0).ResetAt.Equal(t0.Add(time.Minute)) {
				t.Errorf("%v, error %v; want %d used until %v", d, err, i+1, t0.Add(time.Minute))
			}
			if i == 2 {
				w.clocks[0].ahead = off
			}
			p.Check()
			w.Advance(time.Second)
		}
		if left := w.shards[0].Primary.PTTL(t.Context(), p.Locate(charge).Key).Val(); left <= 0 || left > time.Minute+algorithm.Margin {
			t.Errorf("the key expires in %v", left)
		}
		if !strings.Contains(w.log.String(), "level=WARN") {
			t.Error("no warning was logged")
		}
	}
}

// A warning is logged once when the skew crosses the bound of a promise.
func TestSkewIsLoggedOnce(t *testing.T) {
	w := newWorld(t, 1)
	p := w.process(t, 4*time.Second)
	lines := func(want int, what string) {
		t.Helper()
		for range 3 {
			p.Check()
		}
		if got := strings.Count(w.log.String(), "\n"); got != want {
			t.Errorf("%s: %d lines, want %d:\n%s", what, got, want, w.log.String())
		}
	}
	lines(0, "4 s")
	p.own.ahead = 6 * time.Second
	lines(1, "6 s")
	p.own.ahead = 4900 * time.Millisecond
	lines(1, "hardly below")
	p.own.ahead = -4 * time.Second
	lines(2, "-4 s")
	p.own.ahead = -time.Hour
	lines(3, "-1 h")
	for _, want := range []string{"level=WARN", "level=INFO", "shard=a", "server=primary", "ahead=-1h0m0s", "limit=5s"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, w.log.String())
		}
	}
}

// Two processes with clocks that differ compete for a bucket, and each gets half of it.
func TestSequentialBucketsAreFair(t *testing.T) {
	w := newWorld(t, 1)
	for _, algorithm := range []quota.Algorithm{throttler.TokenBucket, throttler.LeakyBucket} {
		for _, ahead := range [][2]time.Duration{
			{0, 0}, {250 * time.Millisecond, -250 * time.Millisecond}, {500 * time.Millisecond, -500 * time.Millisecond},
			{5 * time.Second, -5 * time.Second}, {0, 5 * time.Second}, {-8 * time.Second, -time.Second},
		} {
			t.Run(fmt.Sprint(algorithm, " ", ahead[0], " ", ahead[1]), func(t *testing.T) {
				processes := [2]*proc{w.process(t, ahead[0]), w.process(t, ahead[1])}
				limit := throttler.Limit{Quota: 10, Window: time.Second, Algorithm: algorithm}
				got, total := contest(t, w, policy(fmt.Sprint("p", w.Now().Unix()), limit), processes)
				t.Logf("%d and %d of %d", got[0], got[1], total)
				if share := float64(got[0]) / float64(got[0]+got[1]); share < 0.4 || share > 0.6 {
					t.Errorf("the processes got %v, want a half each", got)
				}
				if got[0]+got[1] > total || got[0]+got[1] < total-1 {
					t.Errorf("the processes got %v, want %d together", got, total)
				}
			})
		}
	}
}

// contest makes each process take one unit, in alternating order, every 7 ms for 3 s. It
// returns the units that each got, and the total that was available.
func contest(t *testing.T, w *world, p *throttler.Policy, processes [2]*proc) (got [2]int, total int) {
	const every, lasts = 7 * time.Millisecond, 3 * time.Second
	for passed := time.Duration(0); passed < lasts; passed += every {
		for i := range processes {
			i = (i + int(passed/every)) % 2
			d, err := processes[i].throttler.Take(t.Context(), p.Charge("alice"))
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				got[i]++
			}
		}
		w.Advance(every)
		if passed%time.Second < every {
			processes[0].Check()
			processes[1].Check()
		}
	}
	l := p.Limits[0]
	return got, int(l.Quota) + int(float64(l.Quota)*float64(lasts)/float64(l.Window))
}
