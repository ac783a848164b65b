package ports

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// open serves h on a port with at most n connections.
func open(t *testing.T, n int, isStranger func(net.Addr) bool, h http.HandlerFunc) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, ended := NewServer(h, slog.New(slog.DiscardHandler)), make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(Bounded(l, n, isStranger)) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// get sends a request on c, and returns the status.
func get(t *testing.T, c net.Conn) string {
	t.Helper()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		return err.Error()
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "no answer"
	}
	_ = r.Body.Close()
	return r.Status
}

func serve(http.ResponseWriter, *http.Request) {}

func TestBound(t *testing.T) {
	addr := open(t, 2, nil, serve)
	first, second, third := dial(t, addr), dial(t, addr), dial(t, addr)
	for _, c := range []net.Conn{first, second} {
		if got := get(t, c); got != "200 OK" {
			t.Fatal(got)
		}
	}
	answered := make(chan string)
	go func() { answered <- get(t, third) }()
	select {
	case got := <-answered:
		t.Fatalf("a third connection is served: %s", got)
	case <-time.After(20 * time.Millisecond): // a failure is found, if not in each run
	}
	_ = first.Close()
	if got := <-answered; got != "200 OK" {
		t.Errorf("after one has left: %s", got)
	}
}

// Strangers take no place of others.
func TestStrangers(t *testing.T) {
	var strange func(net.Addr) bool
	known := make(chan string, 1)
	strange = func(a net.Addr) bool {
		select {
		case addr := <-known:
			if addr == a.String() {
				return false
			}
		default:
		}
		return true
	}
	addr := open(t, 100, strange, serve)
	var served, closed int
	for range 3 * maxStrangers {
		if get(t, dial(t, addr)) == "200 OK" {
			served++
		} else {
			closed++
		}
	}
	if served != maxStrangers || closed != 2*maxStrangers {
		t.Errorf("%d strangers are served, and %d closed", served, closed)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	from := l.Addr().(*net.TCPAddr)
	_ = l.Close()
	known <- from.String()
	c, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if got := get(t, c); got != "200 OK" {
		t.Errorf("a client that is no stranger: %s", got)
	}
}

// A client that is still sending gets the answer, and no reset.
func TestAnswerBeforeTheEnd(t *testing.T) {
	addr := open(t, 10, nil, serve)
	for range 20 {
		c := dial(t, addr)
		for _, part := range append([]string{"GET / HTTP/1.1\r\nHost: h\r\nX A: \x01\r\n"}, slices.Repeat([]string{"X: " + strings.Repeat("x", 7000) + "\r\n"}, 60)...) {
			if _, err := io.WriteString(c, part); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
			t.Fatalf("%q, %v", answer, err)
		}
	}
}

// A request that takes longer than the time to read one is not ended by it.
func TestUnhurried(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(Unhurried(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			w.WriteHeader(http.StatusInternalServerError)
		case <-time.After(200 * time.Millisecond):
		}
	}), slog.New(slog.DiscardHandler))
	s.ReadTimeout = 50 * time.Millisecond
	go func() { _ = s.Serve(Bounded(l, 1, nil)) }()
	defer func() { _ = s.Close() }()
	if got := get(t, dial(t, l.Addr().String())); got != "200 OK" {
		t.Error(got)
	}
}
