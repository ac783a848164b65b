package main

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// TestWaitersAreSentAwayAtTheEnd ends a demo while requests wait for their start in a leaky
// bucket, for longer than the server writes a response or drains. They get a 503, their places
// are refunded while Redis can still be reached, and the demo ends without an error.
func TestWaitersAreSentAwayAtTheEnd(t *testing.T) {
	const waiters = 20
	config := fmt.Sprintf(`
backend: redis
redis: {shards: [{name: a, primary: %s}]}
policies:
  core: {limits: [{quota: 1, window: 40s, algorithm: leaky-bucket, burst: %d}]}
`, testserver.Redis(t).Addr, waiters+1)
	d := startDemo(t, config)
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK {
		t.Fatalf("the first: got %v, want 200", r)
	}
	answers := make(chan response, waiters)
	for range waiters {
		go func() {
			r, err := d.try("GET", "/repos/acme/rockets")
			if err != nil {
				r.body = err.Error()
			}
			answers <- r
		}()
	}
	for inside("middleware.(*throttle).waitForStart") < waiters { // waiting until all are charged would be too early
		time.Sleep(time.Millisecond)
	}
	d.stop()
	for range waiters {
		if r := <-answers; r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
			t.Errorf("a waiter: got %v, Retry-After %q; want 503 and when to come back", r, r.header.Get("Retry-After"))
		}
	}
	if err := d.end(); err != nil {
		t.Errorf("run: %v", err)
	}
	if log := d.stderr.String(); strings.Contains(log, "rate limit: failures") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the log has\n%s", log)
	}

	again := startDemo(t, config)
	body := again.get("/rate_limit").body
	for _, want := range []string{`"core":{"limit":21,"used":1,`, `"secondary":{"limit":900,"used":1,`} {
		if !strings.Contains(body, want) {
			t.Errorf("after it: got %s, want %s in it", body, want)
		}
	}
}

// inside returns the number of goroutines in a function.
func inside(function string) int {
	stacks := make([]byte, 16<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), function+"(")
}

// TestOutageIsLoggedInAFewLines kills Redis under load and restarts it.
func TestOutageIsLoggedInAFewLines(t *testing.T) {
	for _, test := range []struct {
		onFailure string
		status    int
		lines     int // at most
		names     []string
	}{
		// A broken connection, a refused one and an open breaker are three causes, each with a
		// line.
		{"open", http.StatusOK, 12, []string{"shard=a", "core", "served_without_limit"}},
		{"closed", http.StatusServiceUnavailable, 12, []string{"shard=a", "core", "answered_503"}},
	} {
		t.Run(test.onFailure, func(t *testing.T) {
			server := testserver.Redis(t)
			d := startDemo(t, fmt.Sprintf("backend: redis\nredis: {shards: [{name: a, primary: %s}]}\non_failure: %s\n", server.Addr, test.onFailure))
			d.get("/search?q=weir")
			server.Kill()
			const requests = 500
			for range requests {
				if r := d.get("/repos/acme/rockets"); r.status != test.status || r.rates() != "/ " {
					t.Fatalf("got %v, want %d without rates", r, test.status)
				}
			}
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
			for d.get("/search?q=weir").header.Get("X-RateLimit-Used") == "" {
				time.Sleep(time.Millisecond)
			}
			d.stderr.find(t, "(a server answers again)", d.ended)
			if lines := strings.Count(d.stderr.String(), "\n"); lines > test.lines {
				t.Errorf("%d lines for %d requests, want at most %d:\n%s", lines, requests, test.lines, d.stderr)
			}
			for _, part := range test.names {
				if !strings.Contains(d.stderr.String(), part) {
					t.Errorf("the log does not name %q", part)
				}
			}
		})
	}
}
