// Command bench measures weir next to other rate limiters: over a redis-server that it starts,
// in memory, as middleware and under HTTP load. It also measures how weir's costs grow with
// keys, limits, logs and shards.
//
//	make bench-peers                          # all of it, into docs/inside/performance
//	make bench-peers ARGS=-quick              # a look within two minutes, printed only
//	go -C test/bench run . -quick -rows '^memory'  # only some rows
//	go -C test/bench run . -list                   # the names of rows and peers
//
// Every pass visits the rows, and the peers of a row, in a new random order.
// Tables of the medians go to standard output, progress to standard error.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/weir-go/weir/test/bench/internal/report"
	"github.com/weir-go/weir/test/bench/result"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := bench(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "bench: interrupted; the servers are stopped, and nothing was written")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench runs the program with args.
func bench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quickly := flags.Bool("quick", false, "measure less: about two minutes")
	rowsMatch := flags.String("rows", "", "only the rows whose name matches this `regexp`")
	peersMatch := flags.String("only", "", "only the peers whose name matches this `regexp`")
	list := flags.Bool("list", false, "print the names of rows and peers, and measure nothing")
	passes := flags.Int("passes", 0, "how often each peer is measured; default 5, or 3 if quick")
	length := flags.Duration("sample", 0, "length of a measurement; default 300ms, or 50ms if quick")
	maxKeys := flags.Int("max-keys", 0, "how many keys the growth rows go to; default 1000000, or 100000 if quick. 10000000 takes some 6 GB of memory, and minutes more")
	seed := flags.Uint64("seed", 0, "of the order of measurements; if 0, a random one, which is printed")
	out := flags.String("out", "", "write the results to this `file`, as JSON")
	docs := flags.String("docs", "", "write results, figures and tables into the documentation of the repository in this `directory`")
	worker := flags.String("worker", "", "be a process of the fleet rows, with decisions of the redis-server at this `address`")
	callers := flags.Int("callers", 1, "with -worker: goroutines that ask for decisions")
	keys := flags.Int("keys", 1, "with -worker: keys that they ask for")
	from := flags.String("from", "", "measure nothing; take the results from this `file`")
	err := flags.Parse(args)
	if err != nil {
		return err
	}
	if *worker != "" {
		return work(ctx, *worker, *callers, *keys, *length, os.Stdin, stdout)
	}
	if *docs != "" && (*rowsMatch != "" || *peersMatch != "") {
		return errors.New("-docs is for a whole run: leave out -rows and -only")
	}
	var set *result.Set
	if *from != "" {
		set, err = result.Read(*from)
	} else {
		s := full
		if *quickly {
			s = quick
		}
		override(&s, *passes, *length, *maxKeys)
		*seed = cmp.Or(*seed, rand.Uint64())
		lab := newLab(s)
		defer lab.close()
		var rows []row
		if rows, err = matching(lab.rows(), *rowsMatch, *peersMatch); err != nil {
			return err
		}
		if *list {
			printNames(stdout, rows)
			return nil
		}
		set, err = lab.run(ctx, rows, *seed, *quickly, stderr)
	}
	if err != nil {
		return err
	}
	_, _ = io.WriteString(stdout, report.Text(set))
	if *out != "" {
		if err := set.Write(*out); err != nil {
			return err
		}
	}
	if *docs != "" {
		if err := report.Publish(*docs, set); err != nil {
			return err
		}
	}
	return failures(stderr, set.Results)
}

// matching returns the rows with names that match rowsMatch, with the peers whose names match
// peersMatch.
func matching(rows []row, rowsMatch, peersMatch string) ([]row, error) {
	rowName, err := regexp.Compile(rowsMatch)
	if err != nil {
		return nil, fmt.Errorf("-rows: %w", err)
	}
	peerName, err := regexp.Compile(peersMatch)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	rows = selected(rows, rowName, peerName)
	if len(rows) == 0 {
		return nil, errors.New("no row matches; -list prints them")
	}
	return rows, nil
}

func override(s *settings, passes int, sample time.Duration, maxKeys int) {
	if passes > 0 {
		s.passes = passes
	}
	if sample > 0 {
		s.sample = sample
	}
	if maxKeys > 0 {
		s.maxKeys = maxKeys
	}
}

// rows returns all rows.
func (l *lab) rows() []row {
	var all []row
	for _, rows := range [][]row{
		l.redisRows(), l.networkRows(), l.bytesRows(), l.ceilingRows(), l.hungRows(),
		l.memoryRows(), l.middlewareRows(), l.httpRows(), l.growthRows(), l.fleetRows(),
	} {
		all = append(all, rows...)
	}
	return all
}

func printNames(w io.Writer, rows []row) {
	for _, r := range rows {
		_, _ = fmt.Fprintln(w, r.name)
		for _, c := range r.cells {
			_, _ = fmt.Fprintln(w, "   ", c.peer)
		}
	}
}

// run measures rows, and describes the machine and the settings.
func (l *lab) run(ctx context.Context, rows []row, seed uint64, isQuick bool, progress io.Writer) (*result.Set, error) {
	machine, err := l.machine()
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(progress, "%s, %d cores; seed %d\n", machine.CPU, machine.Cores, seed)
	set := &result.Set{
		Machine: machine, Commit: commit(ctx), Started: time.Now().UTC().Truncate(time.Second), Seed: seed,
		Passes: l.passes, SampleMS: l.sample.Milliseconds(), PatienceMS: l.patience.Milliseconds(), Keys: len(l.keys), Quick: isQuick, Versions: versions(),
	}
	set.Results, err = run(ctx, rows, l.passes, rand.New(rand.NewPCG(seed, seed)), progress)
	return set, err
}

func (l *lab) machine() (result.Machine, error) {
	server, err := l.redis("main")
	if err != nil {
		return result.Machine{}, err
	}
	version, err := server.infoText("server", "redis_version")
	return result.Machine{CPU: cpuName(), Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Redis: version, Load: loadAverage()}, err
}
