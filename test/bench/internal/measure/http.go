package measure

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// HTTPLoad sends requests to a server in this process over loopback, one at a time on each
// connection, like wrk. It allocates nothing, so that a request's costs are the server's.
type HTTPLoad struct {
	Connections      int
	Warmup, Duration time.Duration
	Requests         [][]byte // as written to the wire; sent in turn
}

// Request returns a GET with one header field, for HTTPLoad.
func Request(name, value string) []byte {
	return fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: bench\r\n%s: %s\r\n\r\n", name, value)
}

// HTTPReport is the result of an HTTPLoad.
type HTTPReport struct {
	Responses int64
	Refused   int64 // those with a status of 400 or more
	Elapsed   time.Duration
	P50, P99  time.Duration
}

// Serve serves handler on a free port of loopback until stop is called.
func Serve(handler http.Handler) (addr string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // until Close
	}()
	return listener.Addr().String(), func() { _ = server.Close(); <-done }, nil
}

// Run sends requests to addr until the duration has passed or ctx is done.
func (l HTTPLoad) Run(ctx context.Context, addr string) (HTTPReport, error) {
	if l.Warmup > 0 {
		if _, err := l.run(ctx, addr, l.Warmup); err != nil {
			return HTTPReport{}, err
		}
	}
	return l.run(ctx, addr, l.Duration)
}

func (l HTTPLoad) run(ctx context.Context, addr string, d time.Duration) (HTTPReport, error) {
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	clients := make([]httpClient, l.Connections)
	for i := range clients {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return HTTPReport{}, err
		}
		defer conn.Close()
		clients[i].conn, clients[i].reader = conn, bufio.NewReader(conn)
	}
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			c := &clients[i]
			// Clients begin at different requests, so that they don't ask for the same keys.
			for n := i * len(l.Requests) / len(clients); c.err == nil && time.Since(begin) < d && !stop.Load(); n++ {
				c.err = c.roundTrip(l.Requests[n%len(l.Requests)])
			}
		})
	}
	wg.Wait()
	report := HTTPReport{Elapsed: time.Since(begin)}
	var latencies histogram
	for i := range clients {
		c := &clients[i]
		if c.err != nil {
			return HTTPReport{}, c.err
		}
		report.Responses += c.latencies.n
		report.Refused += c.refused
		latencies.merge(&c.latencies)
	}
	report.P50, report.P99 = latencies.quantile(0.50), latencies.quantile(0.99)
	return report, ctx.Err()
}

type httpClient struct {
	conn      net.Conn
	reader    *bufio.Reader
	refused   int64
	latencies histogram
	err       error
}

func (c *httpClient) roundTrip(request []byte) error {
	begin := time.Now()
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	status, err := c.readResponse()
	if err != nil {
		return err
	}
	if status >= http.StatusBadRequest {
		c.refused++
	}
	c.latencies.add(time.Since(begin))
	return nil
}

// readResponse reads a response with a Content-Length, and drops it.
func (c *httpClient) readResponse() (status int, err error) {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < len("HTTP/1.1 200") {
		return 0, fmt.Errorf("status line %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, fmt.Errorf("status line %q", line)
	}
	length := -1
	for {
		line, err = c.reader.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, fmt.Errorf("header %q", line)
			}
		}
	}
	if length < 0 {
		return 0, errors.New("a response without a Content-Length")
	}
	_, err = c.reader.Discard(length)
	return status, err
}
