// Command service measures throttlerd next to envoyproxy/ratelimit, with the same descriptors,
// over gRPC, on a separate redis-server.
//
//	make bench-service                             # all of it, into docs
//	go -C test/bench/service run . -sample 200ms        # a look, printed only
//
// It builds both services. Each pass visits them in a new random order. The medians of the
// passes go to standard output.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
}

// settings say how much to measure.
type settings struct {
	passes      int
	sample      time.Duration
	connections int
	clients     int
	hungFor     time.Duration // how long to wait for an answer while Redis hangs
	pins        bool          // pin service and Redis to one core, and the load to the others
	progress    io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("service", flag.ContinueOnError)
	flags.SetOutput(stderr)
	s := settings{progress: stderr}
	flags.IntVar(&s.passes, "passes", 5, "how often each service is measured")
	flags.DurationVar(&s.sample, "sample", 2*time.Second, "length of a measurement")
	flags.IntVar(&s.connections, "connections", 64, "gRPC connections, each with one call at a time")
	flags.IntVar(&s.clients, "clients", 10_000, "clients, each with its own counts")
	flags.DurationVar(&s.hungFor, "hung", 5*time.Second, "how long an answer is waited for while Redis hangs")
	flags.BoolVar(&s.pins, "pin", runtime.NumCPU() > 1, "give service and Redis one core, and the load the others; if not, they share all")
	throttlerd := flags.String("throttlerd", "", "the `program` to measure; if empty, it is built")
	peer := flags.String("peer", "", "the `program` of envoyproxy/ratelimit; if empty, it is built")
	docs := flags.String("docs", "", "write figure and tables into the documentation of the repository in this `directory`")
	empty := flags.String("empty", "", "be a service that decides nothing, at this `address`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *empty != "" {
		return serveEmpty(ctx, *empty)
	}
	dir, err := os.MkdirTemp("", "weir-service-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	services, err := build(ctx, dir, *throttlerd, *peer)
	if err != nil {
		return err
	}
	if s.pins {
		if err := pin(ctx, os.Getpid(), fmt.Sprintf("1-%d", runtime.NumCPU()-1)); err != nil {
			return err
		}
	}
	results, err := s.measure(ctx, dir, services)
	if err != nil {
		return err
	}
	_, _ = io.WriteString(stdout, results.text())
	if *docs != "" {
		return results.publish(*docs)
	}
	return nil
}
