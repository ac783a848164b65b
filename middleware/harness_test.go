package middleware_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
)

// used returns the units that key has used of the first limit of p.
func used(t testing.TB, th *throttler.Throttler, p *throttler.Policy, key string) int64 {
	t.Helper()
	d, err := th.Peek(t.Context(), p.Charge(key))
	if err != nil {
		t.Fatal(err)
	}
	return d.Limit(0).Used
}

// expectUsed checks the units that "everyone" has used of p.
func expectUsed(t testing.TB, th *throttler.Throttler, p *throttler.Policy, want int64) {
	t.Helper()
	if got := used(t, th, p, "everyone"); got != want {
		t.Errorf("%s: used %d, want %d", p.Name, got, want)
	}
}

// aMinute is a deadline that only a hang exceeds. The default is short for a busy
// machine.
const aMinute = time.Minute

// newMiddleware is middleware.New with a deadline of a minute, unless one is set.
func newMiddleware(th *throttler.Throttler, classify middleware.Classifier, options *middleware.Options) (func(http.Handler) http.Handler, error) {
	var o middleware.Options
	if options != nil {
		o = *options
	}
	if o.Deadline == 0 {
		o.Deadline = aMinute
	}
	return middleware.New(th, classify, &o)
}

// newStatus is middleware.Status with the same deadline.
func newStatus(th *throttler.Throttler, classify middleware.Classifier, options *middleware.StatusOptions) (http.Handler, error) {
	var o middleware.StatusOptions
	if options != nil {
		o = *options
	}
	if o.Deadline == 0 {
		o.Deadline = aMinute
	}
	return middleware.Status(th, classify, &o)
}

// limit returns middleware that charges everyone under p.
func limit(th *throttler.Throttler, p *throttler.Policy, options *middleware.Options) func(http.Handler) http.Handler {
	return must(newMiddleware(th, everyone(p), options))
}

// logBuffer is a logger's output.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lines returns the lines so far.
func (b *logBuffer) lines() []string {
	text := strings.TrimSpace(b.String())
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// newLog returns an observer that logs, and its log.
func newLog() (observe.Observer, *logBuffer) {
	b := new(logBuffer)
	return weirlog.New(slog.New(slog.NewTextHandler(b, nil)), nil), b
}

// server is a real server that reports the end of each request.
type server struct {
	*httptest.Server
	log  *logBuffer    // the server's ErrorLog
	done chan struct{} // receives when a request's handler has returned or panicked
}

// start serves handler. configure may be nil.
func start(t testing.TB, http2 bool, handler http.Handler, configure func(*http.Server)) *server {
	t.Helper()
	s := &server{log: new(logBuffer), done: make(chan struct{}, 1000)}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { s.done <- struct{}{} }()
		handler.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = log.New(s.log, "", 0)
	if configure != nil {
		configure(s.Config)
	}
	s.EnableHTTP2 = http2
	if http2 {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// get requests path and returns the response with its body read.
func (s *server) get(t testing.TB, path string) (*http.Response, string) {
	t.Helper()
	return s.do(t, must(http.NewRequestWithContext(t.Context(), "GET", s.URL+path, nil)))
}

func (s *server) do(t testing.TB, r *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("body: %v", err)
	}
	return res, string(body)
}

// dial opens a plain connection and sends text.
func (s *server) dial(t testing.TB, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// proxyTo returns a proxy to target.
func proxyTo(t testing.TB, target *server) *httputil.ReverseProxy {
	t.Helper()
	u := must(url.Parse(target.URL))
	p := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport: target.Client().Transport,
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	return p
}

// expectHeaders checks headers of a response. Each must appear once, or not at all if
// its value is "".
func expectHeaders(t testing.TB, h http.Header, header ...string) {
	t.Helper()
	for i := 0; i < len(header); i += 2 {
		got := h.Values(header[i])
		if len(got) == 0 && header[i+1] == "" || len(got) == 1 && got[0] == header[i+1] {
			continue
		}
		t.Errorf("%s is %q, want %q", header[i], got, header[i+1])
	}
}

// soon fails the test if c does not deliver in a time that only a hang exceeds.
func soon[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: nothing happened for 20 s", what)
	}
	return v
}

// pipes is a listener with connections in memory, so that a server can run in a synctest
// bubble, where time passes only while all goroutines wait.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// startInBubble serves handler in memory, and returns a client of it.
func startInBubble(t *testing.T, http2 bool, handler http.Handler, configure func(*http.Server)) *http.Client {
	t.Helper()
	p := &pipes{make(chan net.Conn), make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	s := &http.Server{Handler: handler, Protocols: protocols}
	configure(s)
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(p) })
	transport := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		p.conns <- theirs
		return ours, nil
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = s.Close()
		served.Wait()
	})
	return &http.Client{Transport: transport}
}

// onFailed is an observer of failures.
type onFailed struct {
	observe.Nothing
	call func(observe.Failed)
}

func (o onFailed) Failed(e observe.Failed) { o.call(e) }

// withStatus refuses with another status.
func withStatus(status int) func(http.ResponseWriter, *http.Request, middleware.Refusal) {
	return func(w http.ResponseWriter, r *http.Request, x middleware.Refusal) {
		if x.Err == nil {
			x.Status = status
		}
		x.Write(w, r)
	}
}
