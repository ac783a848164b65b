package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// flaky is a backend with one shard for each first letter of a key. It answers with
// the error that fail returns for a shard.
type flaky struct {
	driver.Backend
	fail func(shard string) error
}

func (f *flaky) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	shard := r.Charges()[0].Key[:1]
	if err := f.fail(shard); err != nil {
		return driver.Decision{}, &driver.UnavailableError{Backend: "test", Shard: shard, Err: err}
	}
	return f.Backend.Take(ctx, r)
}

func (f *flaky) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return f.Take(ctx, r)
}

// byUser charges by the header User.
func byUser(p *throttler.Policy) middleware.Classifier {
	return middleware.Limit(p, middleware.KeyFunc(func(r *http.Request) (string, bool) { return r.Header.Get("User"), true }))
}

func TestAnOutageIsALineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		b := &flaky{memorybackend.NewDefault(), func(string) error {
			if gone.Load() {
				return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
			}
			return nil
		}}
		th := throttler.New(b, nil)
		log, lines := newLog()
		core, search := policy("core", per(1<<40, time.Hour)), policy("search", per(1<<40, time.Hour))
		open := must(newMiddleware(th, byUser(core), &middleware.Options{Observer: log}))(status(200))
		closed := must(newMiddleware(th, byUser(search), &middleware.Options{Observer: log, FailClosed: true}))(status(200))
		rates := must(newStatus(th, byUser(core), &middleware.StatusOptions{Observer: log}))
		load := func() { // for a second
			for i := range 20 {
				get(open, "User", fmt.Sprint("a", i%7))
				get(closed, "User", fmt.Sprint("a", i%7))
				time.Sleep(50 * time.Millisecond)
			}
			synctest.Wait()
		}
		load()
		if l := lines.lines(); len(l) != 0 {
			t.Fatalf("logged without a failure: %q", l)
		}
		gone.Store(true)
		for range 60 {
			load()
		}
		get(rates, "User", "a1")
		gone.Store(false)
		for range 3 * 60 {
			load()
		}
		l := lines.lines()
		if len(l) != 4 { // at seconds 0, 60 and 120, and after a minute without failures
			t.Fatalf("%d lines about a minute:\n%s", len(l), lines)
		}
		for i, want := range [][]string{
			{"level=WARN", "backend=test", "shard=a", `cause="connection refused"`, "count=1 ", "policies=[core]", "served_without_limit=1"},
			{"count=2399 ", `policies="[core search]"`, "served_without_limit=1199", "answered_503=1200"},
			{"count=1 ", "answered_503=1"}, // the status
			{"level=INFO", `msg="rate limit: failures are over"`, "shard=a", "count=2401", "lasted=1m0s"},
		} {
			for _, part := range want {
				if !strings.Contains(l[i], part) {
					t.Errorf("line %d does not contain %s: %s", i, part, l[i])
				}
			}
		}
		if strings.Contains(lines.String(), "a1") {
			t.Errorf("a key was logged:\n%s", lines)
		}
		time.Sleep(time.Minute)
		if more := lines.lines(); len(more) != len(l) {
			t.Errorf("logged after the end: %q", more[len(l):])
		}
	})
}

func TestShardsAndCausesAreLoggedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answered atomic.Int64
		b := &flaky{memorybackend.NewDefault(), func(shard string) error {
			n := answered.Add(1)
			switch {
			case shard == "a":
				return fmt.Errorf("read tcp 127.0.0.1:%d: %w", 30000+n, os.ErrDeadlineExceeded) // each text is different
			case shard == "b" && n%2 == 0:
				return errors.New("READONLY You can't write against a read only replica.")
			case shard == "b" && n%5 == 0:
				return breaker.ErrOpen
			case shard == "b":
				return fmt.Errorf("write: %w", io.EOF)
			}
			return nil
		}}
		th := throttler.New(b, nil)
		log, lines := newLog()
		h := must(newMiddleware(th, byUser(policy("core", per(1<<40, time.Hour))), &middleware.Options{Observer: log}))(status(200))
		for i := range 1000 {
			get(h, "User", fmt.Sprint(string(rune('a'+i%3)), i))
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		text := lines.String()
		if n := len(lines.lines()); n > 8 {
			t.Errorf("%d lines in a second for four causes:\n%s", n, text)
		}
		for _, want := range []string{`shard=a cause="deadline exceeded"`, "shard=b cause=READONLY", `shard=b cause="connection lost"`, `shard=b cause="breaker open"`} {
			if !strings.Contains(text, want) {
				t.Errorf("nothing says %s:\n%s", want, text)
			}
		}
		if strings.Contains(text, "127.0.0.1") {
			t.Errorf("an address was logged:\n%s", text)
		}
		// Shard a's failures are not over because others answer.
		for range 30 {
			get(h, "User", "c")
			time.Sleep(time.Second)
		}
		if strings.Contains(lines.String(), "over") {
			t.Errorf("over though none of its clients was decided about:\n%s", lines)
		}
	})
}

func TestManyKindsOfFailuresAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		b := &flaky{memorybackend.NewDefault(), func(string) error {
			n++
			return fmt.Errorf("E%c%c no", 'A'+n%26, 'A'+n/26%26)
		}}
		log, lines := newLog()
		h := must(newMiddleware(throttler.New(b, nil), byUser(policy("core", per(1<<40, time.Hour))), &middleware.Options{Observer: log}))(status(200))
		for range 1000 {
			get(h, "User", "a")
		}
		synctest.Wait()
		if n := len(lines.lines()); n > 65 {
			t.Errorf("%d lines at once", n)
		}
	})
}

func TestRequestsWithoutAnAddressShareACountAndThatIsLoggedOnce(t *testing.T) {
	th, _ := newThrottler()
	log, lines := newLog()
	h := must(newMiddleware(th, middleware.Limit(policy("core", per(2, time.Minute)), middleware.ClientIP(nil)), &middleware.Options{Observer: log}))(status(200))
	from := func(addr string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = addr
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	expect(t, from("@"), 200, "X-RateLimit-Used", "1") // a Unix socket
	expect(t, from(""), 200, "X-RateLimit-Used", "2")
	expect(t, from("@"), 429)
	expect(t, from("192.0.2.7:99"), 200, "X-RateLimit-Used", "1") // and others do not
	if l := lines.lines(); len(l) != 1 || !strings.Contains(l[0], "share one count") || !strings.Contains(l[0], "policy=core") {
		t.Errorf("logged %q", l)
	}
}

// If a program sets no observer, failures are logged to its default log, including
// failures of the memory backend.
func TestWithoutAnObserverFailuresAreInTheDefaultLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines, was := new(logBuffer), slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(lines, nil)))
		defer slog.SetDefault(was)
		b := &flaky{memorybackend.NewDefault(), func(string) error { return errors.New("DEFAULT log") }}
		get(must(newMiddleware(throttler.New(b, nil), byUser(policy("core", per(1, time.Hour))), nil))(status(200)), "User", "a")

		full := throttler.New(must(memorybackend.New(&memorybackend.Options{MaxKeys: 1})), nil)
		h := must(newMiddleware(full, byUser(policy("core", per(1, time.Hour))), nil))(status(200))
		get(h, "User", "a")
		get(h, "User", "b")
		for _, want := range []string{"backend=test shard=a cause=DEFAULT count=1", `backend=memorybackend cause="no room for new keys" count=1`} {
			if !strings.Contains(lines.String(), want) {
				t.Errorf("the default log is\n%s\nwant %s in it", lines, want)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := strings.Count(lines.String(), "failures are over"); n != 2 {
			t.Errorf("the default log has %d ends, want 2:\n%s", n, lines)
		}
	})
}
