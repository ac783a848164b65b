package middleware_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// The response as handlers see it.

// failing is a recorder whose connection cannot be hijacked.
type failing struct{ *httptest.ResponseRecorder }

func (failing) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errors.New("no") }

// methods lists the optional interfaces of a writer.
func methods(w http.ResponseWriter) string {
	var all []string
	note := func(name string, ok bool) {
		if ok {
			all = append(all, name)
		}
	}
	_, ok := w.(http.Flusher)
	note("Flush", ok)
	_, ok = w.(http.Hijacker)
	note("Hijack", ok)
	_, ok = w.(http.Pusher)
	note("Push", ok)
	return strings.Join(all, " ")
}

func TestAssertionsSucceedAsWithoutTheMiddleware(t *testing.T) {
	th, _ := newThrottler()
	check := func(want string) http.Handler {
		return http.HandlerFunc(func(outside http.ResponseWriter, r *http.Request) {
			limit(th, policy("core", per(100, time.Minute)), nil)(http.HandlerFunc(func(inside http.ResponseWriter, _ *http.Request) {
				if out, in := methods(outside), methods(inside); out != want || in != want {
					t.Errorf("outside %q, inside %q, want %q", out, in, want)
				}
			})).ServeHTTP(outside, r)
		})
	}
	start(t, false, check("Flush Hijack"), nil).get(t, "/")
	start(t, true, check("Flush Push"), nil).get(t, "/")
	start(t, true, http.TimeoutHandler(check("Push"), time.Minute, ""), nil).get(t, "/")
	get(check("Flush"))
	check("Flush Hijack").ServeHTTP(failing{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil))
	check("").ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil))
}

func TestTheControllerDoesNotPassByTheHooks(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		th, _ := newThrottler()
		p := policy("core", per(100, time.Minute))
		flushed := make(chan struct{})
		inside := limit(th, p, nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if _, ok := w.(http.Flusher); ok {
				t.Error("the writer flushes though the one outside does not")
			}
			w.Header().Set("X-RateLimit-Used", "9")
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			close(flushed)
			panic(http.ErrAbortHandler) // and it counts as sent
		}))
		s := start(t, http2, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inside.ServeHTTP(unwrapping{w}, r)
		}), nil)
		res, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		soon(t, flushed, "the flush") // it would fail if the client had closed the stream
		res.Body.Close()
		expectHeaders(t, res.Header, "X-RateLimit-Used", "1")
		soon(t, s.done, "the handler")
		expectUsed(t, th, p, 1)
	})
}

// unwrapping is a writer with only the additional method Unwrap.
type unwrapping struct{ w http.ResponseWriter }

func (u unwrapping) Header() http.Header         { return u.w.Header() }
func (u unwrapping) Write(p []byte) (int, error) { return u.w.Write(p) }
func (u unwrapping) WriteHeader(status int)      { u.w.WriteHeader(status) }
func (u unwrapping) Unwrap() http.ResponseWriter { return u.w }

func TestTheControllerHijacksThroughTheHooks(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(100, time.Minute))
	inside := limit(th, p, nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
		panic("x") // the connection was used
	}))
	s := start(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside.ServeHTTP(unwrapping{w}, r)
	}), nil)
	if res, err := s.Client().Get(s.URL); err == nil {
		res.Body.Close()
	}
	soon(t, s.done, "the handler")
	expectUsed(t, th, p, 1)
}

func TestSuperfluousCallsAreLogged(t *testing.T) {
	th, _ := newThrottler()
	s := start(t, false, limit(th, policy("core", per(100, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/twice":
			w.WriteHeader(200)
			w.WriteHeader(500)
		case "/hijacked":
			conn, _, _ := w.(http.Hijacker).Hijack()
			defer conn.Close()
			w.WriteHeader(500)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHijacked) {
				t.Errorf("Write: %v", err)
			}
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrHijacked) {
				t.Errorf("WriteString: %v", err)
			}
		}
	})), nil)
	res, _ := s.get(t, "/twice")
	if res.StatusCode != 200 {
		t.Errorf("status %d", res.StatusCode)
	}
	if res, err := s.Client().Post(s.URL+"/hijacked", "", nil); err == nil { // a GET would be repeated
		res.Body.Close()
	}
	soon(t, s.done, "twice")
	soon(t, s.done, "hijacked")
	want := []string{
		"http: superfluous response.WriteHeader call",
		"http: response.WriteHeader on hijacked connection",
		"http: response.Write on hijacked connection",
		"http: response.Write on hijacked connection",
	}
	got := s.log.lines()
	if len(got) != len(want) {
		t.Fatalf("logged %q", got)
	}
	for i, line := range got {
		if !strings.HasPrefix(line, want[i]) {
			t.Errorf("logged %q, want %s", line, want[i])
		}
	}
}

func TestABadStatusPanicsAsInNetHTTP(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(100, time.Minute))
	s := start(t, false, limit(th, p, nil)(status(99)), nil)
	if res, err := s.Client().Get(s.URL); err == nil {
		res.Body.Close()
		t.Errorf("status %d", res.StatusCode)
	}
	soon(t, s.done, "the handler")
	expectUsed(t, th, p, 1)
}

// stringWriter counts calls to WriteString and Write.
type stringWriter struct {
	*httptest.ResponseRecorder
	strings, bytes int
}

func (w *stringWriter) WriteString(s string) (int, error) { w.strings++; return len(s), nil }
func (w *stringWriter) Write(p []byte) (int, error)       { w.bytes++; return len(p), nil }

func TestWriteStringDoesNotCopy(t *testing.T) {
	th, _ := newThrottler()
	w := &stringWriter{ResponseRecorder: httptest.NewRecorder()}
	limit(th, policy("core", per(100, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "x")
	})).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.strings != 1 || w.bytes != 0 {
		t.Errorf("%d strings, %d byte slices", w.strings, w.bytes)
	}
}

// A source that fails before its first byte leaves room for an error.
func TestReadFromBeginsWithTheFirstByte(t *testing.T) {
	th, _ := newThrottler()
	s := start(t, false, limit(th, policy("core", per(100, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.Copy(w, io.MultiReader(strings.NewReader(""), brokenSource{}))
		http.Error(w, err.Error(), http.StatusBadGateway)
	})), nil)
	res, body := s.get(t, "/")
	if res.StatusCode != 502 || !strings.Contains(body, "broken source") {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

type brokenSource struct{}

func (brokenSource) Read([]byte) (int, error) { return 0, errors.New("broken source") }

func TestReadFromCopiesAll(t *testing.T) {
	file := must(os.CreateTemp(t.TempDir(), ""))
	content := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	_, _ = file.Write(content)
	th, _ := newThrottler()
	s := start(t, false, limit(th, policy("core", per(100, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/content" {
			http.ServeContent(w, r, "x", time.Time{}, file)
			return
		}
		_, _ = file.Seek(0, io.SeekStart)
		n, err := io.Copy(w, file)
		if n != int64(len(content)) || err != nil {
			t.Errorf("copied %d, %v", n, err)
		}
	})), nil)
	for _, path := range []string{"/", "/content"} {
		if res, body := s.get(t, path); body != string(content) || res.Header.Get("X-RateLimit-Limit") != "100" {
			t.Errorf("%s: %d bytes, limit %q", path, len(body), res.Header.Get("X-RateLimit-Limit"))
		}
	}
}
