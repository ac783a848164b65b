package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
)

// A row is one measurement, made on several peers.
type row struct {
	name  string  // parts separated by slashes
	x     float64 // place on the axis, if any
	fixed bool    // measured in the first pass only, because it does not vary
	cells []cell
}

// A cell measures one peer. It ends by must or check if that fails.
type cell struct {
	peer    string
	role    peers.Role
	measure func(context.Context) sample
}

// A sample is the result of one measurement.
type sample struct {
	values map[string]float64
	text   string
}

// cellsOf returns a cell for each peer.
func cellsOf(contenders []peers.Peer, measure func(context.Context, peers.Peer) sample) (cells []cell) {
	for _, p := range contenders {
		cells = append(cells, cell{p.Name, p.Role, func(ctx context.Context) sample { return measure(ctx, p) }})
	}
	return cells
}

// failure is the panic of check and must, which visit and try return as an error.
type failure struct{ error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// try returns the result of f, or the error of its check or must.
func try[T any](f func() T) (v T, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	return f(), nil
}

// run measures every cell of rows in each pass, and returns the results in the order of rows.
// Each pass visits the rows, and the cells of a row, in a new random order: the peers of a row
// are measured close together in time, and no peer always follows the same other one.
func run(ctx context.Context, rows []row, passes int, random *rand.Rand, progress io.Writer) ([]result.Result, error) {
	var results []result.Result
	first := make([]int, len(rows)) // index of a row's first result
	cells := 0
	for i, r := range rows {
		first[i] = len(results)
		for _, c := range r.cells {
			results = append(results, result.Result{Row: r.name, X: r.x, Peer: c.peer, Role: c.role})
		}
		if cells += len(r.cells); !r.fixed {
			cells += (passes - 1) * len(r.cells)
		}
	}
	begin, done := time.Now(), 0
	for pass := range passes {
		for _, i := range random.Perm(len(rows)) {
			if rows[i].fixed && pass > 0 {
				continue
			}
			took := time.Since(begin).Round(time.Second)
			fmt.Fprintf(progress, "pass %d/%d  %3d%%  %-28s %v", pass+1, passes, 100*done/cells, rows[i].name, took)
			if done > 0 {
				fmt.Fprintf(progress, ", about %v left", (took * time.Duration(cells-done) / time.Duration(done)).Round(time.Second))
			}
			fmt.Fprintln(progress)
			for _, j := range random.Perm(len(rows[i].cells)) {
				if err := visit(ctx, rows[i].cells[j], &results[first[i]+j]); err != nil {
					return nil, err
				}
				done++
			}
		}
	}
	fmt.Fprintf(progress, "%d measurements in %v\n", cells, time.Since(begin).Round(time.Second))
	return results, nil
}

// visit adds a sample to a result. A failed peer does not end the run; the next pass measures
// it again.
func visit(ctx context.Context, c cell, target *result.Result) error {
	s, err := try(func() sample { return c.measure(ctx) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		target.Err = err.Error()
		return nil
	}
	if target.Values == nil {
		target.Values = make(map[string][]float64)
	}
	for metric, value := range s.values {
		target.Values[metric] = append(target.Values[metric], result.Round(value))
	}
	target.Text = s.text
	return nil
}

// failures returns an error that names the peers that failed in every pass. It writes those
// that failed in some passes to w.
func failures(w io.Writer, results []result.Result) error {
	var errs []error
	for _, r := range results {
		err := fmt.Errorf("%s, %s: %s", r.Row, r.Peer, strings.TrimSpace(r.Err))
		switch {
		case r.Err == "":
		case len(r.Values) == 0:
			errs = append(errs, err)
		default:
			fmt.Fprintln(w, "failed in one pass or more:", err)
		}
	}
	return errors.Join(errs...)
}
