// Command bench measures weir next to other rate limiters: over a redis-server that it starts,
// in memory, as middleware and under HTTP load. It also measures how weir's costs grow with
// keys, limits, logs and shards; and throttlerd next to envoyproxy/ratelimit.
//
//	make bench-peers                          # all limiters, into docs/inside/performance
//	make bench-peers ARGS=-quick              # a look within two minutes, printed only
//	go -C test/bench run . -quick -rows '^memory'  # only some rows
//	go -C test/bench run . -list                   # the names of rows and peers
//	make bench-service                        # services, into docs/reference/throttlerd.md
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weir-go/weir/test/bench/internal/report"
	"github.com/weir-go/weir/test/bench/peers"
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
	service := flags.Bool("service", false, "measure services, and not limiters")
	quickly := flags.Bool("quick", false, "measure less: about two minutes")
	rowsMatch := flags.String("rows", "", "only the rows whose name matches this `regexp`")
	peersMatch := flags.String("only", "", "only the peers whose name matches this `regexp`")
	list := flags.Bool("list", false, "print the names of rows and peers, and measure nothing")
	passes := flags.Int("passes", 0, "how often each peer is measured; default 5, or 3 if quick")
	length := flags.Duration("sample", 0, "length of a measurement; default 300ms, 50ms if quick, or 2s of services")
	maxKeys := flags.Int("max-keys", 0, "how many keys the growth rows go to; default 1000000, or 100000 if quick. 10000000 takes some 6 GB of memory, and minutes more")
	seed := flags.Uint64("seed", 0, "of the order of measurements; if 0, a random one, which is printed")
	output := flags.String("out", "", "write the results to this `file`, as JSON")
	docs := flags.String("docs", "", "write results, figures and tables into the documentation of the repository in this `directory`")
	input := flags.String("from", "", "measure nothing; take the results from this `file`")
	guard := flags.String("guard", "", "measure the rows of the summary, and fail if weir, next to the best rival, lost more than a tenth since the run in this `file`")
	empty := flags.String("empty", "", "be a service that decides nothing, at this `address`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *empty != "":
		return serveEmpty(ctx, *empty)
	case *docs != "" && *rowsMatch+*peersMatch+*guard != "":
		return errors.New("-docs is for a whole run: leave out -rows, -only and -guard")
	}
	var stored, set *result.Set
	var err error
	if *guard != "" {
		if stored, err = result.Read(*guard); err != nil {
			return err
		}
	}
	if *input != "" {
		set, err = result.Read(*input)
	} else {
		s := full
		if *quickly {
			s = quick
		}
		if *service {
			s.sample, s.clients = 2*time.Second, 10_000
		}
		if stored != nil {
			s.clients = stored.Keys
		}
		s.passes, s.sample, s.maxKeys = cmp.Or(*passes, s.passes), cmp.Or(*length, s.sample), cmp.Or(*maxKeys, s.maxKeys)
		lab := newLab(s)
		defer lab.close()
		rows := lab.rows()
		if *service {
			rows = lab.serviceRows()
		}
		if stored != nil {
			rows = compared(rows)
		}
		if rows, err = matching(rows, *rowsMatch, *peersMatch); err != nil {
			return err
		}
		if *list {
			printRows(stdout, rows)
			return nil
		}
		set, err = lab.run(ctx, rows, cmp.Or(*seed, rand.Uint64()), *quickly, stderr)
	}
	if err != nil {
		return err
	}
	_, _ = io.WriteString(stdout, report.Text(set))
	if *output != "" {
		err = set.Write(*output)
	}
	if *docs != "" && err == nil {
		err = report.Publish(*docs, set)
	}
	if stored != nil && err == nil {
		err = notSlower(stored, set)
	}
	return errors.Join(err, failures(stderr, set.Results))
}

// compared returns the rows of the summary, of weir and its rivals alone.
func compared(rows []row) []row {
	rows = slices.DeleteFunc(rows, func(r row) bool { return !slices.Contains(report.Summarized(), r.name) })
	for i, r := range rows {
		rows[i].cells = slices.DeleteFunc(r.cells, func(c cell) bool { return c.role > peers.Ours && c.peer != report.BareHandler })
	}
	return rows
}

// printRows prints the names of rows and their peers.
func printRows(w io.Writer, rows []row) {
	for _, r := range rows {
		fmt.Fprintln(w, r.name)
		for _, c := range r.cells {
			fmt.Fprintln(w, "   ", c.peer)
		}
	}
}

// notSlower returns an error with the rows in which weir has lost since the stored run.
func notSlower(stored, set *result.Set) error {
	lines, err := report.Worse(stored, set)
	if len(lines) > 0 {
		return errors.New("slower than the stored run:\n" + strings.Join(lines, "\n"))
	}
	return err
}

// matching returns the rows with names that match rowsMatch, with the peers whose names match
// peersMatch. It keeps the bare handler, because middleware is compared with it.
func matching(rows []row, rowsMatch, peersMatch string) ([]row, error) {
	rowName, err := regexp.Compile(rowsMatch)
	if err != nil {
		return nil, fmt.Errorf("-rows: %w", err)
	}
	peerName, err := regexp.Compile(peersMatch)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	var matches []row
	for _, r := range rows {
		r.cells = slices.DeleteFunc(r.cells, func(c cell) bool { return !peerName.MatchString(c.peer) && c.peer != report.BareHandler })
		if len(r.cells) > 0 && rowName.MatchString(r.name) {
			matches = append(matches, r)
		}
	}
	if len(matches) == 0 {
		return nil, errors.New("no row matches; -list prints them")
	}
	return matches, nil
}

// rows returns the rows of limiters.
func (l *lab) rows() []row {
	return slices.Concat(l.redisRows(), l.bytesRows(), l.ceilingRows(), l.hungRows(), l.memoryRows(), l.handlerRows(), l.growthRows(), l.fleetRows())
}
