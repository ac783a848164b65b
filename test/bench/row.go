package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
)

// A row is one measurement, made on several peers.
type row struct {
	name  string  // parts separated by slashes
	x     float64 // place on the axis, if any
	once  bool    // measured in the first pass only, because it does not vary
	cells []cell
}

type cell struct {
	peer    string
	role    peers.Role
	measure func(context.Context) (sample, error)
}

// A sample is the result of one measurement.
type sample struct {
	values map[string]float64
	text   string
}

// selected returns the rows with names that match name, with the cells of peers that match
// peer. Nil matches everything. The bare handler is always kept, because middleware is
// compared with it.
func selected(rows []row, name, peer *regexp.Regexp) []row {
	var all []row
	for _, r := range rows {
		if name != nil && !name.MatchString(r.name) {
			continue
		}
		var cells []cell
		for _, c := range r.cells {
			if peer == nil || peer.MatchString(c.peer) || c.peer == bareHandler {
				cells = append(cells, c)
			}
		}
		if r.cells = cells; len(cells) > 0 {
			all = append(all, r)
		}
	}
	return all
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
		if cells += len(r.cells); !r.once {
			cells += (passes - 1) * len(r.cells)
		}
	}
	begin, done := time.Now(), 0
	for pass := range passes {
		for _, i := range random.Perm(len(rows)) {
			if rows[i].once && pass > 0 {
				continue
			}
			showProgress(progress, pass, passes, rows[i].name, begin, done, cells)
			for _, j := range random.Perm(len(rows[i].cells)) {
				if err := visit(ctx, rows[i].cells[j], &results[first[i]+j]); err != nil {
					return nil, err
				}
				done++
			}
		}
	}
	_, _ = fmt.Fprintf(progress, "%d measurements in %v\n", cells, time.Since(begin).Round(time.Second))
	return results, nil
}

// visit adds a sample to to. A failed peer does not end the run; the next pass measures it
// again.
func visit(ctx context.Context, c cell, to *result.Result) error {
	s, err := c.measure(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		to.Err = err.Error()
		return nil
	}
	if to.Values == nil {
		to.Values = make(map[string][]float64)
	}
	for metric, value := range s.values {
		to.Values[metric] = append(to.Values[metric], result.Round(value))
	}
	to.Text = s.text
	return nil
}

func showProgress(w io.Writer, pass, passes int, name string, begin time.Time, done, cells int) {
	left := ""
	if done > 0 {
		rest := time.Duration(float64(time.Since(begin)) / float64(done) * float64(cells-done))
		left = fmt.Sprintf(", about %v left", rest.Round(time.Second))
	}
	_, _ = fmt.Fprintf(w, "pass %d/%d  %3d%%  %-28s %v%s\n", pass+1, passes, 100*done/cells, name, time.Since(begin).Round(time.Second), left)
}

// failures returns an error that names the peers that failed in every pass. It writes those
// that failed in some passes to w.
func failures(w io.Writer, results []result.Result) error {
	var all []error
	for _, r := range results {
		if r.Err == "" {
			continue
		}
		err := fmt.Errorf("%s, %s: %s", r.Row, r.Peer, strings.TrimSpace(r.Err))
		if len(r.Values) == 0 {
			all = append(all, err)
		} else {
			_, _ = fmt.Fprintln(w, "failed in one pass or more:", err)
		}
	}
	return errors.Join(all...)
}
