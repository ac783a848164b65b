// Package result holds the results of a run.
package result

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/test/bench/peers"
)

// A Set is the results of one run.
type Set struct {
	Machine    Machine   `json:"machine"`
	Commit     string    `json:"commit"` // of weir
	Started    time.Time `json:"started"`
	Seed       uint64    `json:"seed"`        // of the order of measurements
	Passes     int       `json:"passes"`      // number of values of each metric
	SampleMS   int64     `json:"sample_ms"`   // length of a measurement
	PatienceMS int64     `json:"patience_ms"` // how long a decision on a hung Redis was waited for
	Keys       int       `json:"keys"`        // number of keys in rows with many keys
	Quick      bool      `json:"quick"`
	Results    []Result  `json:"results"`
}

// Machine describes the machine of a run.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	OS    string `json:"os"`
	Go    string `json:"go"`
	Redis string `json:"redis"` // its version
	Load  string `json:"load"`  // load average of the minute before the run; empty if unknown
}

// A Result is the result of one peer in one row.
type Result struct {
	Row    string               `json:"row"`
	Peer   string               `json:"peer"`
	Role   peers.Role           `json:"role,omitempty"`
	X      float64              `json:"x,omitempty"`      // place of the row on its axis, such as a number of goroutines
	Values map[string][]float64 `json:"values,omitempty"` // by metric; one for each pass
	Text   string               `json:"text,omitempty"`   // a result that is not a number
	Err    string               `json:"err,omitempty"`    // of the last failed pass
}

// Median returns the median of a metric, or NaN if it has no values.
func (r *Result) Median(metric string) float64 {
	values := slices.Sorted(slices.Values(r.Values[metric]))
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	return (values[(n-1)/2] + values[n/2]) / 2
}

// Spread returns the difference between the highest and the lowest value of a metric, divided
// by their median, or NaN if it has no values.
func (r *Result) Spread(metric string) float64 {
	values := r.Values[metric]
	if len(values) == 0 {
		return math.NaN()
	}
	return (slices.Max(values) - slices.Min(values)) / r.Median(metric)
}

// Pass returns the set of the i-th values.
func (s *Set) Pass(i int) *Set {
	pass := *s
	pass.Results = slices.Clone(s.Results)
	for n, r := range s.Results {
		pass.Results[n].Values = make(map[string][]float64)
		for metric, values := range r.Values {
			pass.Results[n].Values[metric] = values[min(i, len(values)):min(i+1, len(values))]
		}
	}
	return &pass
}

// Row returns the results of a row, in the order of its peers.
func (s *Set) Row(name string) (row []Result) {
	for _, r := range s.Results {
		if r.Row == name {
			row = append(row, r)
		}
	}
	return row
}

// Rows returns the names of the rows that begin with prefix, in order.
func (s *Set) Rows(prefix string) (names []string) {
	for _, r := range s.Results {
		if strings.HasPrefix(r.Row, prefix) && !slices.Contains(names, r.Row) {
			names = append(names, r.Row)
		}
	}
	return names
}

// Get returns the result of peer in row, or a zero Result, with NaN as the median of every
// metric.
func (s *Set) Get(row, peer string) Result {
	return s.find(func(r Result) bool { return r.Row == row && r.Peer == peer })
}

// Ours returns weir's result in row, or a zero Result.
func (s *Set) Ours(row string) Result {
	return s.find(func(r Result) bool { return r.Row == row && r.Role == peers.Ours })
}

func (s *Set) find(matches func(Result) bool) Result {
	if i := slices.IndexFunc(s.Results, matches); i >= 0 {
		return s.Results[i]
	}
	return Result{}
}

// Read reads a file written by Write.
func Read(name string) (*Set, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s := new(Set)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// Write writes s as JSON, with one line for each result.
func (s *Set) Write(name string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	data = bytes.ReplaceAll(data, []byte(`{"row":`), []byte("\n{\"row\":")) // not in a string, where quotes are escaped
	return os.WriteFile(name, append(data, '\n'), 0o644)                    //nolint:gosec // for everybody to read
}

// Round returns v with four significant digits, more than a measurement's precision.
func Round(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64) // a number
	return v
}
