package middleware_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// Leaky buckets: requests that wait for their start.

// queue admits one request per ten seconds, and lets up to 100 wait.
var queue = policy("queue", throttler.Limit{Quota: 1, Window: 10 * time.Second, Algorithm: throttler.LeakyBucket, Burst: 100})

// queued returns a server behind queue. One request has started, so the next waits for
// ten seconds of the clock.
func queued(t *testing.T, handler http.HandlerFunc, options *middleware.Options) (*server, *throttler.Throttler, *clock.Manual) {
	t.Helper()
	th, c := newThrottler()
	if _, err := th.Take(t.Context(), queue.Charge("everyone")); err != nil {
		t.Fatal(err)
	}
	return start(t, false, limit(th, queue, options)(handler), nil), th, c
}

// response is the response to a request in the background, or an error.
type response struct {
	*http.Response
	body string
	err  error
}

func (s *server) send(r *http.Request) <-chan response {
	c := make(chan response, 1)
	go func() {
		res, err := s.Client().Do(r)
		if err != nil {
			c <- response{err: err}
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		c <- response{res, string(body), err}
	}()
	return c
}

func (s *server) request(t *testing.T, method string, body io.Reader) *http.Request {
	return must(http.NewRequestWithContext(t.Context(), method, s.URL, body))
}

func TestAWaitGoesByTheThrottlersClock(t *testing.T) {
	s, th, c := queued(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") },
		&middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}})
	answer := s.send(s.request(t, "GET", nil))
	c.BlockUntil(1)
	c.Advance(9999 * time.Millisecond)
	select {
	case res := <-answer:
		t.Errorf("answered too early: %+v", res)
	default:
	}
	c.Advance(time.Millisecond)
	res := soon(t, answer, "the answer")
	if res.err != nil || res.StatusCode != 200 || res.body != "served" {
		t.Errorf("%+v", res)
	}
	// The bucket drained while the request waited. The reset is the time for the rest.
	expectHeaders(t, res.Header, "X-RateLimit-Used", "2", "RateLimit", `"queue";r=98;t=10`)
	expectUsed(t, th, queue, 1)
}

func TestAWaitIsNoPartOfTheServersTimeouts(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		synctest.Test(t, func(t *testing.T) {
			const timeout = 200 * time.Millisecond
			body := strings.Repeat("x", 1<<20) // more than is read ahead
			th, c := newThrottler()
			if _, err := th.Take(t.Context(), queue.Charge("everyone")); err != nil {
				t.Fatal(err)
			}
			client := startInBubble(t, http2, limit(th, queue, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, err := io.Copy(io.Discard, r.Body)
				fmt.Fprint(w, n, err)
			})), func(s *http.Server) { s.WriteTimeout, s.ReadTimeout = timeout, timeout })
			answer := make(chan string)
			go func() {
				res, err := client.Post("http://weir.test/", "text/plain", strings.NewReader(body))
				if err != nil {
					answer <- err.Error()
					return
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				answer <- fmt.Sprintln(res.StatusCode, string(body), err)
			}()
			c.BlockUntil(1)
			time.Sleep(timeout + timeout/2) // the server's timeouts go by the bubble's clock, decisions by c
			c.Advance(10 * time.Second)
			if got := <-answer; got != "200 1048576 <nil> <nil>\n" {
				t.Errorf("got %s, want 200 and the length of the body", got)
			}
			expectUsed(t, th, queue, 1)
		})
	})
}

// A handler does not run if its response can't be sent.
func TestAWaitThatTheServerCutsOffIsRefused(t *testing.T) {
	th, _ := newThrottler()
	_, _ = th.Take(t.Context(), queue.Charge("everyone"))
	log, lines := newLog()
	h := limit(th, queue, &middleware.Options{Observer: log})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
	s := start(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(struct{ http.ResponseWriter }{w}, r) // its deadline cannot be extended
	}), func(s *http.Server) { s.WriteTimeout = 5 * time.Second })
	res, body := s.get(t, "/")
	if res.StatusCode != 503 || !strings.Contains(body, "longer than the server may take") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	expectHeaders(t, res.Header, "Retry-After", "1", "X-RateLimit-Used", "1")
	expectUsed(t, th, queue, 1)
	if l := lines.lines(); len(l) != 1 || !strings.Contains(l[0], "WriteTimeout") {
		t.Errorf("logged %q", l)
	}
}

// timedOut is a context that reports a passed deadline once it is canceled, and so at a time
// that the test chooses.
type timedOut struct{ context.Context }

func (c timedOut) Err() error {
	if c.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

func TestAContextThatEndsDuringAWaitIs503(t *testing.T) {
	for name, end := range map[string]func(*http.Request) (*http.Request, func()){
		"canceled": func(r *http.Request) (*http.Request, func()) {
			ctx, cancel := context.WithCancel(r.Context())
			return r.WithContext(ctx), cancel
		},
		"an application's deadline": func(r *http.Request) (*http.Request, func()) {
			ctx, cancel := context.WithCancel(r.Context())
			return r.WithContext(timedOut{ctx}), cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			th, c := newThrottler()
			_, _ = th.Take(t.Context(), queue.Charge("everyone"))
			outer := policy("outer", per(100, time.Minute))
			h := limit(th, outer, nil)(limit(th, queue, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") })))
			s := start(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r, stop := end(r)
				go func() { c.BlockUntil(1); stop() }()
				h.ServeHTTP(w, r)
			}), nil)
			res := soon(t, s.send(s.request(t, "POST", strings.NewReader("body"))), "the answer")
			if res.err != nil || res.StatusCode != 503 || !strings.Contains(res.body, "message") {
				t.Errorf("%+v", res)
			}
			expectHeaders(t, res.Header, "Retry-After", "1", "X-RateLimit-Resource", "queue", "X-RateLimit-Used", "1")
			expectUsed(t, th, queue, 1)
			expectUsed(t, th, outer, 0)
		})
	}
}

func TestShutdownWakesWaiters(t *testing.T) {
	s, th, c := queued(t, func(http.ResponseWriter, *http.Request) { t.Error("served") }, nil)
	const waiters = 20
	var all sync.WaitGroup
	for i := range waiters {
		answer := s.send(s.request(t, "POST", strings.NewReader(strings.Repeat("x", i*10_000))))
		all.Go(func() {
			res := soon(t, answer, "a waiter's answer")
			if res.err != nil || res.StatusCode != 503 || !strings.Contains(res.body, "shutting down") || res.Header.Get("Retry-After") != "1" {
				t.Errorf("%+v", res)
			}
		})
	}
	// A client that stopped in the middle of its body.
	stalled := s.dial(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf")
	c.BlockUntil(waiters + 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Config.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	expectUsed(t, th, queue, 1) // before a backend's clients would close
	all.Wait()
	res, err := http.ReadResponse(bufio.NewReader(stalled), nil)
	if err != nil || res.StatusCode != 503 {
		t.Errorf("the stalled one: %+v, %v", res, err)
	}
}

func TestAWaiterThatLeavesIsNoticed(t *testing.T) {
	for name, request := range map[string]string{
		"with an unread body":           "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
		"in the middle of its body":     "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
		"in the middle of a large body": "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + strings.Repeat("x", 100_000),
		"in the middle of its chunks":   "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"without a body":                "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"behind another middleware":     "POST /stacked HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			th, c := newThrottler()
			_, _ = th.Take(t.Context(), queue.Charge("everyone"))
			h := limit(th, queue, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
			if name == "behind another middleware" {
				h = limit(th, policy("outer", per(100, time.Minute)), nil)(h)
			}
			s := start(t, false, h, nil)
			conn := s.dial(t, request)
			c.BlockUntil(1)
			conn.Close()
			soon(t, s.done, "the waiter")
			expectUsed(t, th, queue, 1)
		})
	}
}

// The handler gets all bytes that were read ahead.
func TestABodyThatWasReadAheadArrivesWhole(t *testing.T) {
	s, _, c := queued(t, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		fmt.Fprintf(w, "%d %v %x", n, err, h.Sum(nil))
	}, nil)
	for _, size := range []int{1, 4096, 100_000, 256 << 10, 256<<10 + 1, 3 << 20} {
		for _, chunked := range []bool{false, true} {
			content := strings.Repeat("0123456789abcdef", size/16+1)[:size]
			var body io.Reader = strings.NewReader(content)
			if chunked {
				body = io.MultiReader(body)
			}
			answer := s.send(s.request(t, "POST", body))
			c.BlockUntil(1)
			c.Advance(10 * time.Second)
			res := soon(t, answer, "the answer")
			if want := fmt.Sprintf("%d <nil> %x", size, sha256.Sum256([]byte(content))); res.err != nil || res.body != want {
				t.Errorf("size %d, chunked %v: %q, %v; want %q", size, chunked, res.body, res.err, want)
			}
		}
	}
}

// A handler that reads a part of the body, and then charges a queue, waits as any request
// does. If the client leaves, the wait ends. The body continues where the handler was.
func TestAWaitWithinAHandlerReadsAhead(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		th, c := newThrottler()
		_, _ = th.Take(t.Context(), queue.Charge("everyone"))
		half := make([]byte, 4)
		h := must(newMiddleware(th, middleware.InHandler(), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, half)
			if !middleware.Take(w, r, queue.Charge("everyone")) {
				return
			}
			body, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s%s %v", half, body, err)
		}))
		s := start(t, false, h, nil)
		conn := s.dial(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\nhalfmore")
		c.BlockUntil(1)
		if leaves {
			conn.Close()
			soon(t, s.done, "the waiter")
			expectUsed(t, th, queue, 1)
			continue
		}
		c.Advance(10 * time.Second)
		_, _ = io.WriteString(conn, "rest")
		expectAnswer(t, conn, "halfmorerest <nil>")
	}
}

// The rest of a slow body reaches the handler when the wait is over.
func TestABodyThatIsStillComing(t *testing.T) {
	s, _, c := queued(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", body, err)
	}, nil)
	conn := s.dial(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf")
	c.BlockUntil(1)
	c.Advance(10 * time.Second)
	_, _ = io.WriteString(conn, "half")
	expectAnswer(t, conn, "halfhalf <nil>")
}

// A handler that does not read the body need not wait for the rest of it.
func TestAnAnswerWithoutReadingTheBodyLeavesAtOnce(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"nothing":     func(http.ResponseWriter, *http.Request) {},
		"a status":    status(200),
		"an error":    status(401),
		"a long page": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100_000)) },
		"a part first": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "part")
			w.(http.Flusher).Flush()
		},
		"the beginning read": func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 2)) },
		"in full duplex":     func(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).EnableFullDuplex() },
		"a panic":            func(http.ResponseWriter, *http.Request) { panic("x") }, // recovered outside
	} {
		t.Run(name, func(t *testing.T) {
			th, c := newThrottler()
			_, _ = th.Take(t.Context(), queue.Charge("everyone"))
			s := start(t, false, recoverer(limit(th, queue, nil)(handler)), nil)
			// net/http itself waits for the rest of a body of up to 256 KiB.
			conn := s.dial(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\nhalf")
			c.BlockUntil(1)
			c.Advance(10 * time.Second)
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second)) // only a hang needs it
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestInFullDuplexTheBodyIsReadAfterTheResponseHasBegun(t *testing.T) {
	s, _, c := queued(t, func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", body, err)
	}, nil)
	conn := s.dial(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf")
	c.BlockUntil(1)
	c.Advance(10 * time.Second)
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "half")
	if body, err := io.ReadAll(res.Body); string(body) != "halfhalf <nil>" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
}

func TestAClientThatExpects100IsAskedByTheHandlerOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 200 * time.Millisecond
		th, c := newThrottler()
		if _, err := th.Take(t.Context(), queue.Charge("everyone")); err != nil {
			t.Fatal(err)
		}
		client := startInBubble(t, false, limit(th, queue, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Unwanted") != "" {
				w.WriteHeader(417)
				return
			}
			body, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %v", body, err)
		})), func(s *http.Server) { s.ReadTimeout = timeout })
		dial := func(text string) (net.Conn, *bufio.Reader) {
			conn := must(client.Transport.(*http.Transport).DialContext(t.Context(), "", ""))
			t.Cleanup(func() { conn.Close() })
			_, _ = io.WriteString(conn, text)
			c.BlockUntil(1)
			time.Sleep(timeout + timeout/2) // the server's timeouts go by the bubble's clock, decisions by c
			c.Advance(10 * time.Second)
			return conn, bufio.NewReader(conn)
		}
		conn, r := dial("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
		if line, _, _ := r.ReadLine(); string(line) != "HTTP/1.1 100 Continue" {
			t.Errorf("%s", line)
		}
		_, _, _ = r.ReadLine()
		_, _ = io.WriteString(conn, "body")
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(res.Body); string(body) != "body <nil>" {
			t.Errorf("%s", body)
		}
		_, r = dial("POST / HTTP/1.1\r\nHost: x\r\nUnwanted: yes\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
		if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 417 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func expectAnswer(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(res.Body); string(body) != want || err != nil {
		t.Errorf("%q, %v; want %q", body, err, want)
	}
}

func TestADryRunDoesNotWait(t *testing.T) {
	th, _ := newThrottler()
	h := limit(th, queue, &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}})(status(204))
	for range 3 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		expect(t, w, 204)
	}
}
