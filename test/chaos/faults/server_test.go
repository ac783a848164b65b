package faults_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// repeatedly calls what at intervals until stop is called.
func repeatedly(every time.Duration, what func()) (stop func()) {
	end := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(every):
				what()
			}
		}
	})
	return func() {
		close(end)
		all.Wait()
	}
}

// The faults of a Redis server that affect decisions, except the loss of its counts.
func TestServerOfRedis(t *testing.T) {
	server := testserver.Redis(t, "--enable-debug-command", "yes")
	admin := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: 30 * time.Second, MaxRetries: -1})
	t.Cleanup(func() { _ = admin.Close() })
	ctx := context.Background()
	must := func(t *testing.T, args ...any) {
		t.Helper()
		if err := admin.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	// await returns when the server answers a command with an error of that kind.
	await := func(t *testing.T, kind string, args ...any) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			err := admin.Do(ctx, args...).Err()
			if redis.HasErrorPrefix(err, kind) {
				return
			}
			if time.Since(began) > 20*time.Second {
				t.Fatalf("waited 20 s for %s; the reply is %v", kind, err)
			}
		}
	}
	r := newRig(t, "redis", server.Addr)
	for _, fault := range []struct {
		name string
		harm func(t *testing.T) (undo func())
	}{
		{"script flush", func(*testing.T) func() {
			return repeatedly(time.Millisecond, func() { admin.ScriptFlush(ctx) })
		}},
		{"client kill", func(*testing.T) func() {
			return repeatedly(10*time.Millisecond, func() { admin.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes") })
		}},
		{"read only", func(t *testing.T) func() {
			must(t, "replicaof", "127.0.0.1", "1")
			await(t, "READONLY", "set", "x", "y")
			return func() { must(t, "replicaof", "no", "one") }
		}},
		{"out of memory", func(t *testing.T) func() {
			must(t, "config", "set", "maxmemory", "1")
			await(t, "OOM", "set", "x", "y")
			return func() { must(t, "config", "set", "maxmemory", "0") }
		}},
		{"busy", func(t *testing.T) func() {
			must(t, "config", "set", "lua-time-limit", "5")
			var busy sync.WaitGroup
			busy.Go(func() { admin.Eval(ctx, "while true do end", nil) })
			await(t, "BUSY", "ping")
			return func() {
				for admin.ScriptKill(ctx).Err() != nil { // NOTBUSY until it is
					time.Sleep(time.Millisecond)
				}
				busy.Wait()
			}
		}},
		{"loading", func(t *testing.T) func() {
			for i := range 100 {
				admin.Set(ctx, fmt.Sprint("filler ", i), strings.Repeat("x", 4<<10), 0)
			}
			must(t, "config", "set", "key-load-delay", fmt.Sprint((*lasts).Microseconds()/100))
			must(t, "config", "set", "loading-process-events-interval-bytes", "1024")
			var loaded sync.WaitGroup
			loaded.Go(func() {
				if err := admin.Do(ctx, "debug", "reload").Err(); err != nil {
					t.Errorf("debug reload: %v", err)
				}
			})
			await(t, "LOADING", "ping")
			return loaded.Wait
		}},
		{"not permitted", func(t *testing.T) func() {
			must(t, "acl", "setuser", "default", "-evalsha", "-eval")
			await(t, "NOPERM", "eval", "return 1", "0")
			return func() { must(t, "acl", "setuser", "default", "+@all") }
		}},
		{"paused", func(*testing.T) func() {
			server.Pause()
			return server.Resume
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			all := r.run(t, func() (undo func()) { return fault.harm(t) })
			r.verify(t, all)
			for _, a := range all {
				for _, err := range a.failures {
					if strings.Contains(err.Error(), "NOSCRIPT") {
						t.Errorf("%s: %v", a.Key, err)
					}
				}
			}
		})
	}
}

// A server that restarts without its counts opens one new window for each key, and counts
// every later decision exactly.
func TestRestartOfRedis(t *testing.T) {
	server := testserver.Redis(t)
	restart := func() (undo func()) {
		server.Kill()
		return func() {
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
		}
	}
	testRestart(t, newRig(t, "redis", server.Addr), restart)
}

func TestRestartOfMemcached(t *testing.T) {
	server := testserver.Memcached(t)
	restart := func() (undo func()) {
		server.Kill()
		return func() {
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
		}
	}
	testRestart(t, newRig(t, "memcached", server.Addr), restart)
}

func testRestart(t *testing.T, r *rig, restart func() func()) {
	for i, a := range r.run(t, func() func() {
		undo := restart()
		return func() {
			r.losses.Add(1)
			undo()
		}
	}) {
		d := r.count(t, a)
		delete(a.windows, a.reset)
		if len(a.windows) > 1 {
			t.Errorf("%s: %d windows were opened after one restart", a.Key, len(a.windows))
		}
		s := d.Limit(0)
		answered := int64(0)
		for _, times := range a.windows[s.ResetAt] {
			answered += int64(times)
		}
		least, most := answered-a.refunded-a.refundUnknown, answered+a.takenUnknown
		if i%8 != 7 && (s.Used < least || s.Used > most) {
			t.Errorf("%s: %d units are counted; want %d to %d", a.Key, s.Used, least, most)
		}
	}
}

// A key with a value of another type fails only its own decisions.
func TestWrongTypeUnderLoad(t *testing.T) {
	server := testserver.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	th := newRig(t, "redis", server.Addr)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: million, Window: time.Hour}}}
	key := th.redis.Locate(p.Charge("bad")).Key
	if err := admin.LPush(t.Context(), key, "a list").Err(); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			own := fmt.Sprint("good ", g)
			for i := range int64(20) {
				if _, err := th.Take(t.Context(), p.Charge("bad")); !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), "something other than a count") {
					t.Errorf("a take of a list: %v", err)
				}
				if d, err := th.Take(t.Context(), p.Charge(own)); err != nil || d.Limit(0).Used != i+1 {
					t.Errorf("a take next to it: used %d, %v; want %d", d.Limit(0).Used, err, i+1)
				}
			}
		})
	}
	all.Wait()
}

// lostCalls counts the failed calls of a client, and the decisions in them.
type lostCalls struct{ calls, decisions atomic.Int64 }

func (l *lostCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lostCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		l.note(cmd, err)
		return err
	}
}

func (l *lostCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		err := next(ctx, all)
		for _, cmd := range all {
			l.note(cmd, cmd.Err())
		}
		return err
	}
}

func (l *lostCalls) note(cmd redis.Cmder, err error) {
	if name := cmd.Name(); err == nil || name != "evalsha" && name != "eval" || redis.HasErrorPrefix(err, "NOSCRIPT") {
		return
	}
	l.calls.Add(1)
	l.decisions.Add(int64(cmd.Args()[2].(int))) // each has a key
}

// Many goroutines share round trips while half of the connections break: a failed call fails
// only its own decisions.
func TestOneBadCallHurtsItsDecisionsOnly(t *testing.T) {
	server := testserver.Redis(t)
	r := newRig(t, "redis", server.Addr)
	var lost lostCalls
	client := newClient(t, r.link.Addr).(*redis.Client)
	client.AddHook(&lost)
	b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	th := throttler.New(b, nil)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: million, Window: time.Hour}}}
	const enough = 100 // failures
	var failed, answered atomic.Int64
	stop := repeatedly(20*time.Millisecond, func() {
		if failed.Load() < enough { // otherwise all calls would fail on a machine so busy that each takes as long
			r.link.Inject(cutReplies)
			r.link.Heal()
		}
	})
	var all sync.WaitGroup
	late := within(time.Minute)
	for g := range 128 {
		all.Go(func() {
			last := int64(0)
			for n := 0; n < 10 || failed.Load() == 0; n++ {
				if late() {
					t.Error("waited a minute for decisions, and for some to fail")
					return
				}
				d, err := th.Take(context.Background(), p.Charge(fmt.Sprint("key ", g)))
				if driver.MayHaveCharged(err) {
					failed.Add(1)
				}
				if err != nil {
					n--
					time.Sleep(time.Millisecond)
					continue
				}
				answered.Add(1)
				if used := d.Limit(0).Used; used <= last {
					t.Errorf("used %d after %d", used, last)
				} else {
					last = used
				}
			}
		})
	}
	all.Wait()
	stop()
	t.Logf("%d decisions were answered, %d failed in %d calls", answered.Load(), failed.Load(), lost.calls.Load())
	if failed.Load() != lost.decisions.Load() {
		t.Errorf("%d decisions failed, and %d were in the calls that failed", failed.Load(), lost.decisions.Load())
	}
}
