// Command load sends the requests of many clients to a demo, or to several demos that share
// their counts, and checks the answers:
//
//	go run ./cmd/demo-api/load -clients 1000 -every 400ms -for 60s http://127.0.0.1:8080
//
// Each client invents its own token, so the demo's configuration needs
// "tokens: any", which make stack sets.
//
// Each second it prints how many requests were served and refused, the latencies, and the
// broken promises. It exits with status 1 if a promise was broken.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/testkit/load"
)

func main() {
	clients := flag.Int("clients", 100, "how many clients")
	interval := flag.Duration("every", time.Second, "mean time between two requests of a client")
	duration := flag.Duration("for", 0, "how long; 0 is until Ctrl-C")
	path := flag.String("path", "/repos/acme/rockets", "`path` that the clients request")
	prefix := flag.String("prefix", fmt.Sprintf("load-%d-", time.Now().UnixNano()), "of the clients' tokens; new ones each time if not set")
	flag.Parse()
	if flag.NArg() == 0 || *clients < 1 || *interval <= 0 {
		fmt.Fprintln(os.Stderr, "usage: load [-clients N] [-every DURATION] [-for DURATION] [-path PATH] URL...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *duration)
		defer cancel()
	}
	print := func(r load.Report) {
		fmt.Printf("%s served %5d, refused %5d, undecided %4d, wrong %d, p50 %8v, p99 %8v\n", time.Now().Format(time.TimeOnly),
			r.Served, r.Refused, r.Undecided, r.WrongCount, r.Quantile(50).Round(time.Microsecond), r.Quantile(99).Round(time.Microsecond))
		for _, w := range r.Wrong {
			fmt.Println("  wrong:", w)
		}
	}
	total := load.Run(ctx, load.Config{URLs: flag.Args(), Path: *path, Clients: *clients, Every: *interval, Prefix: *prefix}, print)
	fmt.Print("in all:  ")
	print(total)
	if total.WrongCount > 0 {
		if slices.ContainsFunc(total.Wrong, func(w string) bool { return strings.Contains(w, "used is") }) {
			fmt.Println("Unless the demo has tokens: any, all these clients are one caller.")
		}
		os.Exit(1)
	}
}
