package main

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
)

// draining returns a service whose HTTP servers have these handlers, their addresses, and a
// channel that gets the error of its drain, which begins when begin is closed.
func draining(t *testing.T, timeout time.Duration, servers ...*http.Server) (addrs []string, begin chan struct{}, ended chan error) {
	t.Helper()
	sv := &service{settings: &settings.Settings{DrainTimeout: timeout}, log: slog.New(slog.DiscardHandler), health: health.NewServer(), grpc: grpc.NewServer(), http: servers}
	for _, s := range servers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, l.Addr().String())
		serveOn("", l, s.Serve, nil)
		t.Cleanup(func() { _ = s.Close() })
	}
	begin, ended = make(chan struct{}), make(chan error, 1)
	go func() {
		<-begin
		ended <- sv.drain(t.Context())
	}()
	return addrs, begin, ended
}

// halfSent returns a connection with a request whose body is not complete.
func halfSent(t *testing.T, addr string, inFlight <-chan struct{}) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	<-inFlight
	return conn
}

// reading returns a server whose handler reads the body of a request, which is then in flight.
func reading() (s *http.Server, inFlight chan struct{}) {
	inFlight = make(chan struct{}, 1)
	return &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		inFlight <- struct{}{}
		_, _ = io.ReadAll(r.Body)
	})}, inFlight
}

// A request that is half sent to one port leaves the requests to another all the time: here,
// the second server must stop accepting before the first has nothing left.
func TestDrainOfAllPortsAtOnce(t *testing.T) {
	first, inFlight := reading()
	ending := make(chan struct{})
	answers := make(chan struct{}, 1)
	second := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answers <- struct{}{}
		<-ending
		_, _ = io.WriteString(w, "allowed")
	})}
	second.RegisterOnShutdown(func() { close(ending) })
	addrs, begin, ended := draining(t, time.Minute, first, second)
	conn := halfSent(t, addrs[0], inFlight)
	got := make(chan string, 1)
	go func() {
		resp, err := http.Get("http://" + addrs[1])
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		got <- string(text)
	}()
	<-answers
	close(begin)
	if text := <-got; text != "allowed" {
		t.Errorf("the request in flight: %s", text)
	}
	if _, err := io.WriteString(conn, "}"); err != nil {
		t.Error(err)
	}
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the request that was half sent: %v, %v", resp, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the drain: %v", err)
	}
}

// What is in flight after the drain time is closed.
func TestDrainCloses(t *testing.T) {
	server, inFlight := reading()
	addrs, begin, ended := draining(t, time.Millisecond, server)
	conn := halfSent(t, addrs[0], inFlight)
	close(begin)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("the drain: %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection: %d bytes, %v; want that it is closed", n, err)
	}
}
