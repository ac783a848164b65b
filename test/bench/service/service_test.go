package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/test/internal/draw"
)

// The load reaches a service, and all measurements are in the tables and the figure.
func TestMeasure(t *testing.T) {
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- serveEmpty(ctx, "127.0.0.1:"+ports[0]) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	s := &settings{passes: 1, connections: 3, clients: 10, progress: t.Output()}
	service := &process{addr: "127.0.0.1:" + ports[0]}
	if err := service.ready(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := dial(service.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for range 3 { // an error does not end the connection
		if _, err := c.call("/none", frame(nil)); err == nil || err.Error() != `grpc-status "12"` {
			t.Errorf("a call of no method returned %v", err)
		}
	}
	all := newResults(s)
	for _, name := range names {
		for _, n := range counts {
			measured, err := s.load(ctx, service.addr, n, 20*time.Millisecond, []int{os.Getpid()})
			if err != nil {
				t.Fatal(err)
			}
			if measured.PerSecond <= 0 || measured.P50 <= 0 || measured.P99 < measured.P50 {
				t.Errorf("%+v", measured)
			}
			measured.CPU = max(measured.CPU, 1) // it may be less than a tick
			all.add(name, n, measured)
		}
		all.Hung[name] = []hungSample{{deadlines[0], 20 * time.Millisecond, ""}, {0, 30 * time.Millisecond, "OK"}}
	}
	text, figure := all.text(), string(draw.SVG(all.figure()))
	for _, want := range []string{
		"| 5 | throttlerd | ", "| | throttlerd ÷ envoyproxy/ratelimit | ",
		"| throttlerd | 20ms | no answer | given up after 20.0 ms |", "| throttlerd | none | OK | 30.0 ms |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(figure, ">throttlerd<") != 2*len(counts) {
		t.Errorf("the figure is\n%s", figure)
	}
}
