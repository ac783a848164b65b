package middleware_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// serve starts a server with real connections, HTTP/1.1 or HTTP/2, behind a policy
// of 100 per minute.
func serve(t *testing.T, http2 bool, handler http.HandlerFunc) *httptest.Server {
	th, _ := newThrottler()
	s := httptest.NewUnstartedServer(must(newMiddleware(th, everyone(policy("core", per(100, time.Minute))), nil))(handler))
	s.EnableHTTP2 = http2
	if http2 {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func bothProtocols(t *testing.T, test func(t *testing.T, http2 bool)) {
	t.Run("HTTP/1.1", func(t *testing.T) { test(t, false) })
	t.Run("HTTP/2", func(t *testing.T) { test(t, true) })
}

func TestStreaming(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		next := make(chan struct{})
		s := serve(t, http2, func(w http.ResponseWriter, r *http.Request) {
			for _, event := range []string{"one\n", "two\n"} {
				_, _ = io.WriteString(w, event)
				w.(http.Flusher).Flush()
				<-next
			}
		})
		res, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.ProtoMajor == 2 != http2 || res.Header.Get("X-RateLimit-Used") != "1" {
			t.Errorf("%s, used %q", res.Proto, res.Header.Get("X-RateLimit-Used"))
		}
		body := bufio.NewReader(res.Body)
		for _, want := range []string{"one\n", "two\n"} { // each arrives before the handler continues
			if got, err := body.ReadString('\n'); err != nil || got != want {
				t.Errorf("got %q, error %v; want %q", got, err, want)
			}
			next <- struct{}{}
		}
	})
}

func TestResponseController(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		s := serve(t, http2, func(w http.ResponseWriter, r *http.Request) {
			c := http.NewResponseController(w)
			for name, err := range map[string]error{
				"SetWriteDeadline": c.SetWriteDeadline(time.Now().Add(time.Minute)),
				"SetReadDeadline":  c.SetReadDeadline(time.Now().Add(time.Minute)),
				"Flush":            c.Flush(),
			} {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
		res, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body) // the handler has ended, and its client has not left
		res.Body.Close()
		if res.Header.Get("X-RateLimit-Used") != "1" {
			t.Errorf("used %q", res.Header.Get("X-RateLimit-Used"))
		}
	})
}

func TestUpgrade(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString(line)
		_ = rw.Flush()
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("%v, error %v", res, err)
	}
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := r.ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("echo %q, error %v", line, err)
	}
}

func TestReaderFrom(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("the response is no ReaderFrom any more: no sendfile")
		}
		_, _ = io.Copy(w, strings.NewReader("body"))
	})
	res, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); string(body) != "body" || res.Header.Get("X-RateLimit-Used") != "1" {
		t.Errorf("body %q, used %q", body, res.Header.Get("X-RateLimit-Used"))
	}
}

// Once a client has read a 304, its next request finds the unit refunded.
func TestRefundIsThereForTheNextRequest(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		s := serve(t, http2, status(304))
		for range 300 { // more than the quota
			res, err := s.Client().Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 304 || res.Header.Get("X-RateLimit-Remaining") != "100" {
				t.Fatalf("%d, remaining %q", res.StatusCode, res.Header.Get("X-RateLimit-Remaining"))
			}
		}
	})
}
