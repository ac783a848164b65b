package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"
)

// drainTimeout is how long requests in flight may take after the signal to
// end. It is more than the slowest route takes.
const drainTimeout = 10 * time.Second

// serve serves until ctx is done, and then until the requests in flight are.
func serve(ctx context.Context, c *config, handler http.Handler, stdout io.Writer, log *slog.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	listener, err := net.Listen("tcp", c.listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is in use by another program; choose another address, such as -listen 127.0.0.1:8081, or any free port with -listen 127.0.0.1:0", c.listen)
	}
	if err != nil {
		return err
	}
	greet(stdout, c, listener.Addr())

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}

	log.Info("ending: no new requests, those in flight are finished; a second signal ends at once")
	// ctx is done already: draining has a time of its own.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return errors.Join(fmt.Errorf("requests were still in flight after %v: %w", drainTimeout, err), server.Close())
	}
	return nil
}

func greet(stdout io.Writer, c *config, addr net.Addr) {
	where := c.backends.describe()
	if a, ok := addr.(*net.TCPAddr); ok && a.IP.IsUnspecified() {
		addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: a.Port} // what a person can type
	}
	fmt.Fprintf(stdout, `serving on http://%[1]s; counts live in %[2]s. Try:

  curl -i http://%[1]s/repos/acme/rockets
  curl -i "http://%[1]s/search?q=weir"
  curl    http://%[1]s/rate_limit

`, addr, where)
}
