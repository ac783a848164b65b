// Package weirdebug serves a page for operators about a throttler and its backends, now and in
// the last minute. Mount its handler next to net/http/pprof's:
//
//	page := weirdebug.New(nil)
//	t := throttler.New(backend, &throttler.Options{Observer: page})
//	debug.Handle("GET /debug/weir", page.Handler())
//
// The page shows decisions per second by policy and outcome, their durations, the servers, the
// counts that moved, failures, the keys that are refused most, and the Stats of backends.
//
// The page has no authentication, like net/http/pprof's. Serve it on a listener that only
// operators reach, and never on a public one.
package weirdebug

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
)

// Options configures an Observer. Nil and the zero value select the defaults.
type Options struct {
	// Label returns the text that the page shows for a refused key, such as the name of a
	// customer. The goroutine of a request calls it when the key enters the table, so it must
	// not block. If nil, the page shows a hash of the key, the same in all processes, and the
	// key is not kept.
	Label func(policy, key string) string

	// ClientPage is the address of a page about one client, for a link. If empty, there is none.
	ClientPage string
}

// Bounds on memory: a program may make names out of requests.
const (
	maxNames   = 256 // of policies, shards, servers, and kinds of moves and failures
	maxRefused = 64  // keys
	maxWarned  = 32
)

// Observer is an observe.Observer for a page. Give it to the throttler, to package middleware
// and to each backend, with other observers by observe.All. It is safe for concurrent use. Its
// memory is bounded: some 2 MB with 256 policies, a few kB with a dozen.
type Observer struct {
	observe.Nothing // events to come

	label      func(policy, key string) string
	clientPage string

	now   func() time.Time // for the page
	since time.Time

	second  atomic.Int64         // the last one that began
	saving  sync.Mutex           // held to save all series, when a second begins, and to show them
	ops     [observe.Ops]*series // durations, by observe.Op
	decided stats.Cache[string, *series]
	trips   stats.Cache[tripKey, *series]

	refused refusals
	servers stats.Servers

	mu       sync.Mutex          // guards the fields below
	moves    map[[2]string]*move // by from and to
	failures map[observe.Failed]*failure
	warnings []observe.Warned
	parts    []part
}

var _ observe.Observer = (*Observer)(nil)

// degraded follows the outcomes among a policy's counters: decisions without the shared
// counts, which count under their outcome, too.
const degraded = observe.Outcomes

// New returns an Observer that has seen nothing.
func New(options *Options) *Observer {
	given := cmp.Or(options, new(Options))
	o := &Observer{
		label: given.Label, clientPage: given.ClientPage, now: time.Now, since: time.Now(),
		moves: make(map[[2]string]*move), failures: make(map[observe.Failed]*failure),
	}
	o.servers.Max, o.servers.Now = maxNames, func() time.Time { return o.now() }
	for op := range o.ops {
		o.ops[op] = newSeries(buckets)
	}
	o.decided.Max, o.decided.Overflow, o.decided.Create = maxNames, stats.Others, func(string) *series { return newSeries(observe.Outcomes + 1) }
	o.trips.Max, o.trips.Overflow, o.trips.Create = maxNames, tripKey{stats.Others, stats.Others, false}, func(tripKey) *series { return newSeries(tripCounts + buckets) }
	return o
}

// Stats adds a section to the page: a table of the value that stats returns, in the order of its
// JSON. The page calls stats each time that it is shown. Weir's numbers come from the Stats
// methods of backends and of a [guard.Stack]:
//
//	for name, stats := range s.Stats() {
//		page.Stats(name, stats)
//	}
//
// [guard.Stack]: https://pkg.go.dev/github.com/weir-go/weir/guard#Stack
func (o *Observer) Stats(name string, stats func() any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.parts = append(o.parts, part{name, stats})
}

type part struct {
	name  string
	stats func() any
}

// Decided counts and times a decision.
func (o *Observer) Decided(_ context.Context, e observe.Decided) {
	if int(e.Op) >= observe.Ops || int(e.Outcome) >= observe.Outcomes {
		return // of a newer throttler
	}
	end := e.Start.Add(e.Duration)
	o.begin(end.Unix())
	o.ops[e.Op].add(bucketOf(e.Duration), 1)
	s := o.decided.Get(e.Policy)
	s.add(int(e.Outcome), 1)
	if e.Degraded {
		s.add(degraded, 1)
	}
	if e.Op == observe.OpTake && e.Outcome == observe.OutcomeRefused {
		o.refused.add(&e, end, o.label)
	}
}

// tripKey identifies a destination of round trips.
type tripKey struct {
	backend, shard string
	replica        bool
}

// The counts of round trips, in front of the buckets of their durations.
const (
	tripDecisions = iota
	tripFailures
	tripCounts
)

// Sent counts and times a round trip.
func (o *Observer) Sent(e observe.Sent) {
	o.begin(e.Start.Add(e.Duration).Unix())
	s := o.trips.Get(tripKey{e.Backend, e.Shard, e.Replica})
	s.add(tripCounts+bucketOf(e.Duration), 1)
	s.add(tripDecisions, int64(e.Decisions))
	if e.Err != nil {
		s.add(tripFailures, 1)
	}
}

// Checked records the state of a server.
func (o *Observer) Checked(e observe.Checked) { o.servers.Checked(e) }

// move sums up the moves from one backend to another.
type move struct {
	From, To            string
	Moved, Lost, Failed int64
	Last                time.Time
	Problem             string // of the last that failed
}

// Moved counts a move.
func (o *Observer) Moved(e observe.Moved) {
	now := o.now()
	o.mu.Lock()
	defer o.mu.Unlock()
	m := keep(o.moves, [2]string{e.From, e.To})
	if m == nil {
		return
	}
	m.From, m.To, m.Last = e.From, e.To, now
	switch {
	case e.Err != nil:
		m.Failed++
		m.Problem = brief(e.Err.Error())
	case e.Lost:
		m.Lost++
	default:
		m.Moved++
	}
}

// failure sums up the failures of one shard, cause and result.
type failure struct {
	observe.Failed // the last
	Count          int64
	First, Last    time.Time
}

// Failed counts a failure.
func (o *Observer) Failed(e observe.Failed) {
	now := o.now()
	o.mu.Lock()
	defer o.mu.Unlock()
	e.Detail = brief(e.Detail)
	key := e
	key.Policy, key.Detail = "", ""
	f := keep(o.failures, key)
	if f == nil {
		return
	}
	if f.Count == 0 {
		f.First = now
	}
	f.Count++
	f.Failed, f.Last = e, now
}

// Warned keeps a warning: it does not come again.
func (o *Observer) Warned(e observe.Warned) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.warnings) < maxWarned {
		o.warnings = append(o.warnings, e)
	}
}

// keep returns the value of k, creating it if necessary, or nil if there are too many.
func keep[K comparable, V any](byKey map[K]*V, k K) *V {
	v := byKey[k]
	if v == nil && len(byKey) < maxNames {
		v = new(V)
		byKey[k] = v
	}
	return v
}

// brief returns text, cut off, because it may contain a server's reply.
func brief(text string) string {
	const longest = 200
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return text
}
