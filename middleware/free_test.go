package middleware_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// Requests that must not be free, and requests that are.

func TestAProxiedResponseIsChargedThoughTheClientHangsUp(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		upstream := start(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "the response, less one byte")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}), nil)
		th, _ := newThrottler()
		p := policy("core", per(100, time.Minute))
		s := start(t, http2, limit(th, p, nil)(proxyTo(t, upstream)), nil)
		for range 10 {
			ctx, hangUp := context.WithCancel(t.Context())
			res, err := s.Client().Do(must(http.NewRequestWithContext(ctx, "GET", s.URL, nil)))
			if err != nil {
				t.Fatal(err)
			}
			if b, err := bufio.NewReader(res.Body).Peek(27); err != nil {
				t.Errorf("read %q, %v", b, err)
			}
			hangUp()
			res.Body.Close()
			soon(t, s.done, "the proxy")
		}
		expectUsed(t, th, p, 10)
	})
}

func TestAClientThatLeftIsChargedWhateverRefundIfSays(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		th, _ := newThrottler()
		p := policy("core", per(100, time.Minute))
		calls := make(chan struct{}, 10)
		upstream := start(t, false, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			calls <- struct{}{}
			<-r.Context().Done()
		}), nil)
		s := start(t, http2, limit(th, p, &middleware.Options{
			RefundIf: func(_ *http.Request, status int, _ http.Header) bool { return status >= 500 },
		})(proxyTo(t, upstream)), nil)
		for range 5 {
			ctx, leave := context.WithCancel(t.Context())
			go func() { <-calls; leave() }()
			res, err := s.Client().Do(must(http.NewRequestWithContext(ctx, "GET", s.URL, nil)))
			if err == nil {
				res.Body.Close()
				t.Error("the client got a response before it left")
			}
			soon(t, s.done, "the proxy")
		}
		expectUsed(t, th, p, 5)
	})
}

// A handler whose deadline has passed may have done its work, and a TimeoutHandler in
// front may have answered for it.
func TestAResponseAfterTheDeadlineIsCharged(t *testing.T) {
	for name, timeout := range map[string]func(http.Handler) http.Handler{
		"of the context": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithTimeout(r.Context(), time.Second)
				defer cancel()
				h.ServeHTTP(w, r.WithContext(ctx))
			})
		},
		"of a TimeoutHandler": func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Second, "") },
	} {
		for _, end := range []http.HandlerFunc{status(502), status(304), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }} {
			synctest.Test(t, func(t *testing.T) {
				th, _ := newThrottler()
				p := policy("core", per(5, time.Minute))
				done := make(chan struct{})
				h := limit(th, p, &middleware.Options{RefundIf: func(_ *http.Request, status int, _ http.Header) bool { return status != 200 }})(
					http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						<-r.Context().Done()
						end(w, r)
					}))
				timeout(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer close(done)
					defer func() { _ = recover() }()
					h.ServeHTTP(w, r)
				})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
				<-done
				if got := used(t, th, p, "everyone"); got != 1 {
					t.Errorf("deadline %s: used %d, want 1", name, got)
				}
			})
		}
	}
}

// A proxy answers a broken upload with a 502, after the upstream has begun to work on
// it.
func TestARequestThatCannotBeReadIsCharged(t *testing.T) {
	for name, request := range map[string]string{
		"that is half":        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
		"with a broken chunk": "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzzzz\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			upstream := start(t, false, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
			}), nil)
			th, _ := newThrottler()
			p := policy("core", per(5, time.Minute))
			s := start(t, false, limit(th, p, &middleware.Options{
				RefundIf: func(_ *http.Request, status int, _ http.Header) bool { return status >= 500 },
			})(proxyTo(t, upstream)), nil)
			conn := s.dial(t, request)
			_ = conn.(*net.TCPConn).CloseWrite()
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil && res.StatusCode != 502 {
				t.Errorf("status %d", res.StatusCode)
			}
			soon(t, s.done, "the proxy")
			expectUsed(t, th, p, 1)
		})
	}
}

func TestA304OfAReadAndClosedBodyIsFree(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		th, _ := newThrottler()
		p := policy("core", per(5, time.Minute))
		s := start(t, http2, limit(th, p, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/read":
				_, _ = io.Copy(io.Discard, r.Body)
			case "/closed":
				r.Body.Close()
				_, _ = r.Body.Read(make([]byte, 1))
			}
			w.WriteHeader(304)
		})), nil)
		for _, path := range []string{"/", "/read", "/closed"} {
			res, _ := s.do(t, must(http.NewRequestWithContext(t.Context(), "POST", s.URL+path, strings.NewReader("body"))))
			expectHeaders(t, res.Header, "X-RateLimit-Used", "0")
		}
		expectUsed(t, th, p, 0)
	})
}

// errorsAreFree is a RefundIf that makes 5xx responses free, and panics, which count as 500.
func errorsAreFree(_ *http.Request, status int, _ http.Header) bool { return status >= 500 }

func TestAPanicIsRefundedOnlyIfNothingWasSentAndRefundIfSaysSo(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		used    int64 // if RefundIf refunds a 500
	}{
		{"at once", func(http.ResponseWriter, *http.Request) { panic("x") }, 0},
		{"to abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0},
		{"by a bad status", status(99), 0},
		{"headers set", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("A", "b"); panic("x") }, 0},
		{"after an early hint", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); panic("x") }, 0},
		{"after the status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic("x") }, 10},
		{"after a byte", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a")); panic("x") }, 10},
		{"after a string", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a"); panic("x") }, 10},
		{"after a flush", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); panic("x") }, 10},
		{"after a flush by the controller", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			panic("x")
		}, 10},
		{"after a copy", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, strings.NewReader("a"))
			panic("x")
		}, 10},
		{"after a copy of nothing", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader(""))
			panic("x")
		}, 0},
		{"after a hijack", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Close()
			panic("x")
		}, 10},
		{"after a report", func(_ http.ResponseWriter, r *http.Request) { _ = middleware.SetCost(r, 7); panic("x") }, 7},
		{"after a report by the header", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", "8"); panic("x") }, 8},
		{"after the status and a report", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			_ = middleware.SetCost(r, 9)
			panic(http.ErrAbortHandler)
		}, 9},
	} {
		for _, free := range []bool{false, true} {
			t.Run(fmt.Sprint(test.name, ", free ", free), func(t *testing.T) {
				th, _ := newThrottler()
				p := policy("core", per(100, time.Minute))
				classify := charging(throttler.Charge{Policy: p, Key: "everyone", Cost: 10}).CostReported()
				options, want := &middleware.Options{CostHeader: "X-Cost"}, test.used
				if free {
					options.RefundIf = errorsAreFree
				} else if want == 0 {
					want = 10
				}
				s := start(t, false, must(newMiddleware(th, classify, options))(test.handler), nil)
				if res, err := s.Client().Get(s.URL); err == nil {
					res.Body.Close()
				}
				soon(t, s.done, "the handler")
				expectUsed(t, th, p, want)
			})
		}
	}
}

func TestTheHandlersOwnPanicGoesOn(t *testing.T) {
	th, _ := newThrottler()
	h := limit(th, policy("core", per(5, time.Minute)), nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer func() {
		if got := recover(); got != http.ErrAbortHandler { //nolint:errorlint // the very value
			t.Errorf("recovered %v, want the handler's own panic", got)
		}
	}()
	get(h)
}

func TestAnInvalidChargeIsNeverServed(t *testing.T) {
	ok := policy("core", per(5, time.Minute))
	for _, test := range []struct {
		name   string
		charge throttler.Charge
		says   string
	}{
		{"a quota of 0", policy("core", per(0, time.Minute)).Charge("k"), "quota is 0"},
		{"a name with a space", policy("my api", per(5, time.Minute)).Charge("k"), `policy name is \"my api\"`},
		{"no policy", throttler.Charge{Key: "k"}, "policy is nil"},
		{"a cost below 0", throttler.Charge{Policy: ok, Key: "k", Cost: -1}, "cost is -1"},
		{"a cost above 2^53", throttler.Charge{Policy: ok, Key: "k", Cost: 1<<53 + 1}, "cost is 9007199254740993"},
	} {
		for _, closed := range []bool{false, true} {
			th, _ := newThrottler()
			log, lines := newLog()
			h := must(newMiddleware(th, charging(test.charge), &middleware.Options{Observer: log, FailClosed: closed}))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				t.Errorf("%s: served", test.name)
			}))
			w := get(h)
			expect(t, w, 500, "X-RateLimit-Limit", "", "Cache-Control", "no-store", "Content-Type", "application/json; charset=utf-8")
			if body := w.Body.String(); !strings.Contains(body, "not configured correctly") || strings.Contains(body, "policy") {
				t.Errorf("%s: body %s", test.name, body)
			}
			get(h)
			if got := lines.lines(); len(got) != 1 || !strings.Contains(got[0], "level=ERROR") || !strings.Contains(got[0], test.says) || !strings.Contains(got[0], "answered_500=1") {
				t.Errorf("%s: logged %q; want one line that says %s", test.name, got, test.says)
			}
			log, _ = newLog()
			dry := must(newMiddleware(th, charging(test.charge), &middleware.Options{Observer: log, DryRun: func(*http.Request, throttler.Decision) {}}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := middleware.SetCostOf(r, "other", 1); !errors.Is(err, throttler.ErrInvalid) {
					t.Errorf("%s: SetCostOf: %v", test.name, err)
				}
				w.WriteHeader(204)
			}))
			expect(t, get(dry), 204)
		}
	}
}

func TestChargesToOneCountAddUp(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(5, time.Minute))
	nobody := func(*http.Request, string) (string, bool) { return "", false }
	// Both have no key, and so share a count.
	h := must(newMiddleware(th, middleware.All(
		middleware.Limit(p, middleware.APIKey("X-Key", nobody)), middleware.Limit(p, middleware.BearerToken(nobody))), nil))(status(200))
	expect(t, get(h), 200, "X-RateLimit-Used", "2")
	expect(t, get(h), 200, "X-RateLimit-Used", "4")
	expect(t, get(h), 429, "X-RateLimit-Used", "4")
}

// counting is a backend that counts calls.
type counting struct {
	driver.Backend
	takes, settles atomic.Int64
}

func (c *counting) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	c.takes.Add(1)
	return c.Backend.Take(ctx, r)
}

func (c *counting) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	c.settles.Add(1)
	return c.Backend.Settle(ctx, s)
}

func TestAContextThatEndedBeforeCostsNoCallAndIsNotServed(t *testing.T) {
	b := &counting{Backend: memorybackend.NewDefault()}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	p := policy("core", per(5, time.Minute))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	for _, ctx := range []context.Context{canceled, late} {
		h := limit(th, p, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/", nil).WithContext(ctx))
		expect(t, w, 503, "Retry-After", "1", "Cache-Control", "no-store", "X-RateLimit-Used", "")
		if b.takes.Load() != 0 {
			t.Error("the backend was asked")
		}
		w = httptest.NewRecorder()
		dry := limit(th, p, &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}})(status(204))
		dry.ServeHTTP(w, httptest.NewRequest("POST", "/", nil).WithContext(ctx))
		expect(t, w, 204)
	}
}

func TestARefundThatFailsIsLogged(t *testing.T) {
	th := throttler.New(&unsettled{memorybackend.NewDefault()}, &throttler.Options{Clock: clock.NewManual(t0)})
	log, lines := newLog()
	p := policy("core", per(5, time.Minute))
	h := limit(th, p, &middleware.Options{Observer: log})(status(304))
	expect(t, get(h), 304, "X-RateLimit-Used", "1") // the charge stays, and the headers show it
	if l := lines.lines(); len(l) != 1 || !strings.Contains(l[0], "not_refunded=1") || !strings.Contains(l[0], "policies=[core]") {
		t.Errorf("logged %q", l)
	}
}

// unsettled is a backend whose settlements fail.
type unsettled struct{ driver.Backend }

func (unsettled) Settle(context.Context, driver.Settlement) (driver.Decision, error) {
	return driver.Decision{}, &driver.UnavailableError{Backend: "test", Shard: "a", Err: io.ErrUnexpectedEOF}
}

func TestASecondaryLimitCountsEveryRequest(t *testing.T) {
	b := &counting{Backend: memorybackend.NewDefault()}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	core, secondary := policy("core", per(60, time.Hour)), policy("secondary", per(5, time.Minute))
	h := must(newMiddleware(th, middleware.All(everyone(core), everyone(secondary).NoRefund()), nil))
	for i := range 5 {
		w := get(h(status(304)))
		expect(t, w, 304, "X-RateLimit-Resource", "secondary", "X-RateLimit-Remaining", []string{"4", "3", "2", "1", "0"}[i])
	}
	expect(t, get(h(status(304))), 429, "X-RateLimit-Resource", "secondary")
	expectUsed(t, th, core, 0)
	expectUsed(t, th, secondary, 5)
	if n := b.takes.Load(); n != 6 {
		t.Errorf("%d takes for 6 requests: both policies belong into one", n)
	}
}

func TestNoRefundHoldsForItsShareOfASum(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(60, time.Hour))
	h := must(newMiddleware(th, middleware.All(everyone(p), everyone(p).NoRefund()), nil))
	expect(t, get(h(status(200))), 200, "X-RateLimit-Used", "2")
	expect(t, get(h(status(304))), 304, "X-RateLimit-Used", "3")
}

func TestAPanicKeepsWhatIsNotRefunded(t *testing.T) {
	th, _ := newThrottler()
	core, secondary := policy("core", per(60, time.Hour)), policy("secondary", per(5, time.Minute))
	h := must(newMiddleware(th, middleware.All(everyone(core), everyone(secondary).NoRefund()), &middleware.Options{RefundIf: errorsAreFree}))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("x") }))
	func() {
		defer func() { _ = recover() }()
		get(h)
	}()
	expectUsed(t, th, core, 0)
	expectUsed(t, th, secondary, 1)
}
