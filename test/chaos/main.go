// Command chaos runs processes that share limits over four shards of Redis, one of them with
// Sentinels and one a Cluster. It kills, stops, separates and fails over processes and servers
// by a plan that depends on a seed, and checks that the limits held:
//
//	make chaos                        # three minutes
//	make chaos ARGS='-for 10m'
//	make chaos ARGS='-seed 7 -for 15s'
//
// It prints a report and writes a figure. It exits with status 1 if an invariant is broken:
//
//   - A window admits no more than its quota, except after a shard lost counts in it: at most
//     a quota more for each restart without counts, and for each takeover by a replica the
//     units that the old primary admitted in its last second.
//   - The final counts are the units answered since the last loss, and any part of the units
//     with an unknown outcome.
//   - No two takes of a window are answered with the same number, no answer contradicts
//     itself, and every error says whether the decision may have been made.
//   - A decision is answered at most 50 ms after its deadline of 50 ms, less the time that the
//     machine stalled.
//   - After a fault, each process that was hit has a decision again within -recovery, less the
//     time that the machine stalled.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/test/chaos/internal/history"
	"github.com/weir-go/weir/throttler"
)

func main() {
	runAsWorker()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	broken, err := chaos(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "chaos: interrupted; processes and servers are stopped, and nothing was judged")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	case broken:
		os.Exit(1)
	}
}

// chaos runs the program with args, and reports whether an invariant is broken.
func chaos(ctx context.Context, args []string, stdout, stderr io.Writer) (broken bool, err error) {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	seed := flags.Uint64("seed", 0, "of the plan and the load; if 0, a random one, which is printed")
	lasts := flags.Duration("for", 3*time.Minute, "how long it takes")
	processes := flags.Int("processes", 3, "that share the limits")
	clients := flags.Int("clients", 8, "of each process: goroutines with one decision at a time")
	mayTake := flags.Duration("recovery", 3*time.Second, "within which each process has a decision again after a fault")
	figure := flags.String("plot", "", "write the figure to this `file`")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	title := fmt.Sprintf("make chaos ARGS='-seed %d -for %v'", *seed, *lasts)
	fmt.Fprintf(stdout, "%s: two shards with a replica each, one with Sentinels, a Cluster, %d processes of %d clients\n", title, *processes, *clients)
	runtime.LockOSThread() // workers end with the thread that started them
	defer runtime.UnlockOSThread()
	dir, err := os.MkdirTemp("", "weir-chaos-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)

	r := new(run)
	s, err := newStack(2, *processes, work{Seed: *seed, Clients: *clients, Every: 10 * time.Millisecond}, dir)
	defer s.stop()
	if err != nil {
		return false, err
	}
	r.began, r.beganWall = history.Monotonic(), time.Now().UnixMilli()
	end := time.Now().Add(*lasts)
	r.faults, err = s.carryOut(ctx, rand.New(rand.NewPCG(*seed, 0)), end, func(f *fault) {
		fmt.Fprintf(stderr, "%5.1f s  %s, for %s\n", r.seconds(f.from), f.text, short(time.Duration(f.to-f.from)))
	})
	if err != nil {
		return false, err
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-time.After(max(time.Until(end), 2*time.Second)):
	}
	r.ended = history.Monotonic()
	if err := s.finish(); err != nil {
		return false, err
	}
	r.faults = append(r.faults, s.unplanned(r.began)...)
	if r.used, err = s.finalCounts(); err != nil {
		return false, err
	}
	for _, w := range s.workers {
		decisions, err := w.read(s.shardOf)
		if err != nil {
			return false, err
		}
		r.decisions = append(r.decisions, decisions...)
	}
	v := r.judge(*mayTake)
	v.print(stdout, r)
	if *figure != "" {
		if err := os.WriteFile(*figure, v.svg(r, title), 0o644); err != nil {
			return false, err
		}
		fmt.Fprintln(stdout, "figure:", *figure)
	}
	return len(v.broken) > 0, nil
}

// peek returns the count of a key.
func peek(b *redisbackend.Backend, key int) (throttler.Decision, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return throttler.New(b, nil).Peek(ctx, chargeOf(key))
}
