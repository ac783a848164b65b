package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// TestUnusedConnectionsDelayNoEnd ends a server with a connection without a request, as
// browsers open in advance: it does not wait the five seconds that Shutdown grants it.
func TestUnusedConnectionsDelayNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
		l := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
		go func() { _ = server.Serve(l) }()
		client, accepted := net.Pipe()
		defer client.Close()
		l.accepted <- accepted
		synctest.Wait() // until the server reads from it

		began := time.Now()
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second { // Shutdown checks at least twice a second
			t.Errorf("it took %v to end", took)
		}
	})
}

// pipes is a listener on connections in memory.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }
