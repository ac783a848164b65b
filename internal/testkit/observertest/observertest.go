// Package observertest tests observers that count, such as prom's and otel's. It has a suite
// for all of them, and the events that each compares with its metrics.
package observertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// Observer is an observer under test.
type Observer struct {
	observe.Observer

	// Read returns the series of its metrics, also of value 0.
	Read func(t testing.TB) []Series

	Decisions string   // the name of the metric that counts decisions
	PerPolicy int      // number of its series for a policy used in takes
	Moves     string   // the name of the metric that counts moves
	Degraded  string   // the name of the metric that counts degraded decisions
	Counts    []string // the names of metrics that count each Decided, if it is a refusal, or each Sent
}

// Series is one series of a metric.
type Series struct {
	Name  string
	Text  string  // the complete text
	Value float64 // of a histogram, its number of values
}

// Core is a policy whose second limit binds.
var Core = &throttler.Policy{Name: "core", Limits: []throttler.Limit{
	{Quota: 9, Window: time.Hour}, {Quota: 2, Window: time.Minute},
}}

// Decide makes decisions about Core: two takes that are allowed and three that are refused, a
// refund, and an invalid take.
func Decide(t *testing.T, o observe.Observer) {
	t.Helper()
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
	d, err := th.Take(t.Context(), Core.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		_, _ = th.Take(t.Context(), Core.Charge("alice")) // the last three are refused
	}
	_, _ = th.Refund(t.Context(), d)
	_, _ = th.Take(t.Context(), throttler.Charge{Policy: Core, Key: "alice", Cost: -1})
}

// Serve reports three round trips, the second with an error and the third, to a replica, with
// a timeout; two openings of a primary's breaker, and one of a replica that is cut; three
// moves; and two failures.
func Serve(o observe.Observer) {
	o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Decisions: 3, Duration: time.Millisecond})
	o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Decisions: 1, Duration: time.Second, Err: errors.New("refused")})
	o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Replica: true, Decisions: 1, Duration: time.Millisecond, Err: context.DeadlineExceeded})
	server := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary"}
	o.Checked(server)
	server.Skew, server.SkewKnown = -1500*time.Millisecond, true
	o.Checked(server)
	for range 2 { // two openings, reported twice each
		server.Open, server.SkewKnown = true, false
		o.Checked(server)
		o.Checked(server)
		server.Open = false
		o.Checked(server)
	}
	o.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true, Open: true, Cut: true, Lag: 2 * time.Second})
	o.Moved(observe.Moved{From: "x", To: "y"})
	o.Moved(observe.Moved{From: "x", To: "y", Lost: true})
	o.Moved(observe.Moved{From: "x", To: "y", Err: errors.New("no")})
	for range 2 {
		o.Failed(observe.Failed{Backend: "redisbackend", Shard: "a", Cause: "breaker open", Policy: "core", Result: observe.ResultAnswered503})
	}
	o.Failed(observe.Failed{Result: observe.Result(observe.Results)}) // of a newer middleware
}

// Run runs the suite. open returns an observer of at most maxNames names, or the default if 0.
func Run(t *testing.T, open func(t testing.TB, maxNames int) Observer) {
	t.Run("BeginAtZero", func(t *testing.T) { beginAtZero(t, open(t, 0)) })
	t.Run("SeriesAreBounded", func(t *testing.T) { seriesAreBounded(t, open) })
	t.Run("StrangeEvents", func(t *testing.T) { strangeEvents(t, open(t, 0)) })
	t.Run("ManyGoroutines", func(t *testing.T) { manyGoroutines(t, open(t, 4)) })
	t.Run("NoAllocations", func(t *testing.T) { noAllocations(t, open(t, 0)) })
}

// Counts of events start at zero, so that the first event is a rise: an alert on losses can't
// wait for a second one.
func beginAtZero(t *testing.T, o Observer) {
	o.Decided(t.Context(), observe.Decided{Policy: "core"})
	o.Moved(observe.Moved{From: "a", To: "b"})
	series := o.Read(t)
	for name, outcomes := range map[string][]string{o.Decisions: {"refused", "unavailable"}, o.Moves: {"lost", "failed"}, o.Degraded: {"core"}} {
		for _, outcome := range outcomes {
			if !slices.ContainsFunc(series, func(s Series) bool {
				return s.Name == name && s.Value == 0 && strings.Contains(s.Text, outcome)
			}) {
				t.Errorf("%s has no series of %s at zero", name, outcome)
			}
		}
	}
}

// Unbounded names, such as names of policies made from requests, must not make unbounded
// series. No series may contain a part of a key.
func seriesAreBounded(t *testing.T, open func(t testing.TB, maxNames int) Observer) {
	const names = 20
	o := open(t, names)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
	for i := range 50 * names {
		p := &throttler.Policy{Name: fmt.Sprintf("policy-%d", i), Limits: Core.Limits}
		for range 3 {
			_, _ = th.Take(t.Context(), throttler.Charge{Policy: p, Key: "secret key", Partition: "secret partition"})
		}
		shard := fmt.Sprintf("shard-%d", i)
		o.Sent(observe.Sent{Backend: "redisbackend", Shard: shard, Decisions: 1})
		o.Checked(observe.Checked{Backend: "redisbackend", Shard: shard, Server: shard})
		o.Moved(observe.Moved{From: shard, To: "b"})
		o.Failed(observe.Failed{Backend: "redisbackend", Shard: shard, Cause: "other"})
	}
	counts, together := make(map[string]int), 0.0
	for _, s := range o.Read(t) {
		counts[s.Name]++
		if s.Name == o.Decisions && strings.Contains(s.Text, "(others)") {
			together += s.Value
		}
		if strings.Contains(s.Text, "secret") {
			t.Errorf("a key is in %s", s.Text)
		}
	}
	if want := 3.0 * 49 * names; together != want {
		t.Errorf("%v decisions are counted together; %v of the policies beyond the first %d is right", together, want, names)
	}
	for name, n := range counts {
		limit := names + 1
		switch name {
		case o.Decisions:
			limit *= o.PerPolicy
		case o.Moves:
			limit *= 3 // moved, lost and failed
		}
		if n > limit {
			t.Errorf("%s has %d series; %d is the most", name, n, limit)
		}
	}
}

// Events that would make an array or a client library panic must not fail a request.
func strangeEvents(t *testing.T, o Observer) {
	ctx := t.Context()
	strange := "\xff\x00" + strings.Repeat("é", 500)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
	if _, err := th.Take(ctx, (&throttler.Policy{Name: strange}).Charge("a")); !errors.Is(err, throttler.ErrInvalid) {
		t.Error(err)
	}
	o.Decided(ctx, observe.Decided{Policy: strange})
	o.Decided(ctx, observe.Decided{Op: 200})
	o.Decided(ctx, observe.Decided{Outcome: 200})
	for _, limit := range []int{-1, quota.MaxLimits, 1 << 30} {
		o.Decided(ctx, observe.Decided{Outcome: observe.OutcomeRefused, Limit: limit})
	}
	o.Decided(ctx, observe.Decided{Outcome: observe.OutcomeRefused, Binding: wrongLimit{}})
	o.Sent(observe.Sent{Backend: strange, Shard: strange, Decisions: -1, Duration: -1})
	o.Checked(observe.Checked{Backend: strange, Shard: strange, Server: strange})
	o.Moved(observe.Moved{From: strange, To: strange})
	o.Failed(observe.Failed{Backend: strange, Shard: strange, Cause: strange})
	o.Read(t)
}

// wrongLimit has no text.
type wrongLimit struct{}

func (wrongLimit) MarshalText() ([]byte, error) { return nil, errors.New("no limit") }

// Every event of several goroutines is counted, even while others read.
func manyGoroutines(t *testing.T, o Observer) {
	const goroutines, calls = 8, 500
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range calls {
				o.Decided(t.Context(), observe.Decided{Policy: fmt.Sprint("p", i%8), Outcome: observe.OutcomeRefused, Limit: i % 2, Binding: &quota.Limit{Quota: int64(1 + i%40), Window: time.Minute}})
				o.Sent(observe.Sent{Shard: fmt.Sprint(i % 8)})
				o.Checked(observe.Checked{Shard: "a", Server: fmt.Sprint(i % 8), Open: i%2 == 0})
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			o.Read(t)
		}
	})
	wg.Wait()
	sums := make(map[string]float64)
	for _, s := range o.Read(t) {
		sums[s.Name] += s.Value
	}
	for _, name := range o.Counts {
		if sums[name] != goroutines*calls {
			t.Errorf("%s counts %v events of %d", name, sums[name], goroutines*calls)
		}
	}
}

func noAllocations(t *testing.T, o Observer) {
	for name, event := range map[string]func(){
		"Decided": func() {
			o.Decided(context.Background(), observe.Decided{Policy: "core", Outcome: observe.OutcomeRefused, Limit: 1, Binding: &Core.Limits[1], Degraded: true})
		},
		"Sent": func() { o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Decisions: 8}) },
		"Checked": func() {
			o.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary", SkewKnown: true})
		},
		"Moved": func() { o.Moved(observe.Moved{From: "a", To: "b", Lost: true}) },
	} {
		if n := testing.AllocsPerRun(1000, event); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
