package memcachedbackend

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/throttler"
)

// slowServer runs f in virtual time, with a throttler over a server that has no items and
// replies after wait. stored is its reply to a write.
func slowServer(t *testing.T, wait time.Duration, stored string, f func(*testing.T, *Backend, *throttler.Throttler)) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClient("pipe:1")
		c.DialContext = func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				for r := bufio.NewReader(server); ; {
					line, err := r.ReadString('\n')
					reply := "END\r\n"
					if size := 0; strings.HasPrefix(line, "add ") {
						reply = stored + "\r\n"
						if _, err = fmt.Sscanf(line, "add %s 0 %d %d", new(string), new(int), &size); err == nil {
							_, err = r.Discard(size + len(crlf)) // the value may have line ends
						}
					}
					if err != nil {
						return
					}
					time.Sleep(wait)
					if _, err := fmt.Fprint(server, reply); err != nil {
						return
					}
				}
			}()
			return client, nil
		}
		b, err := New([]Server{{Name: "a", Client: c}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		f(t, b, throttler.New(b, nil))
		b.Close()
		time.Sleep(DefaultDeadline) // the exchanges end
		_ = c.Close()
		time.Sleep(time.Hour) // so do the server's goroutines
	})
}

// opens takes n times, once every 30 ms, and reports whether the breaker has opened. Each
// caller leaves after the given time, by its deadline or, if cancels is set, by a cancel.
func opens(t *testing.T, th *throttler.Throttler, n int, leave time.Duration, cancels bool) bool {
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}
	for range n {
		ctx, cancel := context.WithTimeout(t.Context(), leave)
		if cancels {
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(leave, cancel)
		}
		_, err := th.Take(ctx, p.Charge("alice"))
		cancel()
		if errors.Is(err, breaker.ErrOpen) {
			return true
		}
		time.Sleep(30 * time.Millisecond)
	}
	return false
}

func TestWhatOpensTheBreaker(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name         string
		reply, leave time.Duration
		cancels      bool
		want         bool
	}{
		{"replies at once", 0, 50 * ms, false, false},
		{"callers with tiny deadlines, of a server that replies", 5 * ms, 1 * ms, false, false},
		{"callers that cancel, of a server that replies", 5 * ms, 1 * ms, true, false},
		{"callers that leave before it says something", 19 * ms, 15 * ms, false, false},
		{"callers that waited long enough", 40 * ms, 25 * ms, false, true},
		{"callers with tiny deadlines, of a server that is silent", time.Minute, 1 * ms, false, true},
		{"callers that cancel, of a server that is silent", time.Minute, 1 * ms, true, true},
		{"callers with deadlines, of a server that is silent", time.Minute, 50 * ms, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			slowServer(t, test.reply, "STORED", func(t *testing.T, _ *Backend, th *throttler.Throttler) {
				if got := opens(t, th, 200, test.leave, test.cancels); got != test.want {
					t.Errorf("the breaker opened: %t, want %t", got, test.want)
				}
			})
		})
	}
}

// A decision that loses to other processes until its deadline is no failure of the server:
// only the time that its last exchange has waited counts.
func TestLostRacesOpenNoBreaker(t *testing.T) {
	slowServer(t, time.Millisecond, "NOT_STORED", func(t *testing.T, _ *Backend, th *throttler.Throttler) {
		if opens(t, th, 200, 50*time.Millisecond, false) {
			t.Error("the breaker opened")
		}
	})
}

// An exchange that succeeds ends a row of failures, although no caller waited for it.
func TestExchangesWithoutCallersCount(t *testing.T) {
	slowServer(t, 5*time.Millisecond, "STORED", func(t *testing.T, b *Backend, th *throttler.Throttler) {
		s, down := b.servers[0], errors.New("down")
		for range 10 {
			s.breaker.Record(time.Now(), down)
			s.breaker.Record(time.Now(), down)
			if opens(t, th, 5, time.Millisecond, false) {
				t.Fatal("the breaker opened")
			}
		}
	})
}

// A probe waits no longer than decisions do: the breaker of a server that is too slow for
// decisions stays open. If the server is quick enough, its breaker closes.
func TestSlowServerStaysOpen(t *testing.T) {
	for _, test := range []struct {
		wait time.Duration // of each of the two replies that a decision needs
		open bool
	}{{30 * time.Millisecond, true}, {20 * time.Millisecond, false}} {
		slowServer(t, test.wait, "STORED", func(t *testing.T, b *Backend, th *throttler.Throttler) {
			s := b.servers[0]
			s.timeout.Store(int64(50 * time.Millisecond))
			s.breaker.Trip(time.Now(), errors.New("no reply"))
			for range 100 {
				time.Sleep(100 * time.Millisecond)
				if open := s.breaker.Open(); open != test.open {
					t.Fatalf("replies after %v: open %t, want %t", test.wait, open, test.open)
				}
			}
		})
	}
}

// A connection that comes too late for the call that needed it serves the next call.
func TestLateConnectionServesTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dials := NewClient("pipe:1"), 0
		c.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials++
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				for lines := bufio.NewScanner(server); lines.Scan(); {
					_, _ = fmt.Fprint(server, "VERSION 1\r\n")
				}
			}()
			time.Sleep(200 * time.Millisecond)
			return client, ctx.Err()
		}
		ping := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
			defer cancel()
			return c.Ping(ctx)
		}
		if err := ping(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a connection: %v, want context.DeadlineExceeded", err)
		}
		time.Sleep(time.Second)
		if err := ping(); err != nil || dials != 1 {
			t.Errorf("with one: %v, %d dials; want nil, 1", err, dials)
		}
		_ = c.Close()
	})
}

// A job that was decided in a try that wrote nothing has no outcome if its context ends before
// the next try, whose success is another job's.
func TestATryThatWroteNothingIsNoAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	j := &job{caller: ctx, done: make(chan error, 1)}
	if !j.begin() {
		t.Fatal("the first try did not begin")
	}
	cancel()
	if j.begin() {
		t.Error("the second try began, although the context has ended")
	}
	new(server).finish([]*job{j}, nil)
	select {
	case err := <-j.done:
		t.Errorf("the job has the outcome %v", err)
	default:
	}
}
