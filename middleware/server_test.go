package middleware_test

import (
	"bufio"
	"io"
	"net/http"
	"testing"
	"time"
)

// serve starts a server with real connections, HTTP/1.1 or HTTP/2, behind a policy
// of 100 per minute.
func serve(t *testing.T, http2 bool, handler http.HandlerFunc) *server {
	th, _ := newThrottler()
	return start(t, http2, limit(th, policy("core", per(100, time.Minute)), nil)(handler), nil)
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
