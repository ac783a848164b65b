package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/weir-go/weir/cmd/internal/build"
	"github.com/weir-go/weir/config"
)

const (
	// writeTimeout is how long a response may take, from the end of the
	// request's header on.
	writeTimeout = 30 * time.Second

	// drainTimeout is how long requests in flight may take after the signal to end. The
	// slowest route takes less.
	drainTimeout = 10 * time.Second
)

func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// serve serves until ctx is done, and then until the requests in flight have ended. It serves
// the debug handler until the end.
func serve(ctx context.Context, program *settings, s *config.Stack, api, debug http.Handler, stdout io.Writer, log *slog.Logger) error {
	listener, err := listen(string(program.Listen), "-listen 127.0.0.1:8081, or any free port with -listen 127.0.0.1:0")
	if err != nil {
		return err
	}
	var debugAddr net.Addr
	if program.DebugListen != "" {
		debugListener, err := listen(string(program.DebugListen), "debug_listen: 127.0.0.1:0 for any free port")
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		debugServer := newServer(debug, log)
		go func() { _ = debugServer.Serve(debugListener) }() // ends with the Close below
		defer debugServer.Close()
		debugAddr = debugListener.Addr()
	}
	server := newServer(api, log)
	release, revision := build.Version()
	log.Info("serving", "version", release, "revision", revision)
	greet(stdout, program, s.Config.Places(), listener.Addr(), debugAddr)

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}

	log.Info("ending: no new requests, those in flight are finished; a second signal ends at once")
	// ctx is done already: draining has its own timeout.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return errors.Join(fmt.Errorf("requests were still in flight after %v: %w", drainTimeout, err), server.Close())
	}
	return nil
}

func listen(address, second string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is in use by another program; choose another address, such as %s", address, second)
	}
	return l, err
}

// greet prints the demo's address and requests to try. debug is nil if it is off.
func greet(stdout io.Writer, program *settings, store string, addr, debug net.Addr) {
	reach := ""
	if a, ok := addr.(*net.TCPAddr); ok && a.IP.IsUnspecified() {
		addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: a.Port} // an address that a person can type
		reach = " on all interfaces of this machine, open to others;"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "serving on http://%s;%s counts live in %s. Open it in a browser, or try:\n\n", addr, reach, store)
	fmt.Fprintf(&text, "  curl -i http://%s/repos/acme/rockets\n", addr)
	for _, token := range program.madeUp() { // others may be secret
		fmt.Fprintf(&text, "  curl -i http://%s/repos/acme/rockets -H 'Authorization: Bearer %s'\n", addr, token)
	}
	fmt.Fprintf(&text, "  curl -i \"http://%s/search?q=weir\"\n", addr)
	fmt.Fprintf(&text, "  curl    http://%s/rate_limit\n", addr)
	if debug != nil {
		fmt.Fprintf(&text, "  curl    http://%s/debug\n", debug)
		fmt.Fprintf(&text, "\nFor operators: http://%s/debug/weir\n", debug)
	}
	fmt.Fprintln(stdout, text.String())
}
