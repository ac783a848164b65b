// Package weirlog logs the events of weir: requests without a decision, servers that stop
// answering and come back, replicas that lose their primary, clocks that differ, refusals, and
// lost counts. No line contains a key, unless Options.ShowKeys is set.
//
// A throttler returns the errors of its decisions to its callers, and does not log them.
// Package middleware, which decides how they affect clients, reports them to its Observer.
package weirlog

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
)

// Options configures an Observer. Nil and the zero value select the defaults.
type Options struct {
	// Every is the time between two lines about refusals of one limit, about degraded
	// decisions of one policy, about lost or failed moves between two backends, or about
	// failures of one shard and cause. The first is logged at once, and each further line
	// reports the count since the last. Failures are over when that long passes without one.
	// If 0, a minute.
	Every time.Duration

	// MaxLines is how many lines may be logged in a minute. Refusals may use half of them.
	// Further events are logged later, if they still apply. If 0, 60.
	MaxLines int

	// ShowKeys adds keys to the lines about refusals, at most 8 to each: a key may be a person's
	// address or name, or a secret of a client.
	ShowKeys bool
}

// Observer is an observe.Observer that logs. Give it to the throttler: its backend and its
// middlewares use it, too. It is safe for concurrent use.
type Observer struct {
	observe.Nothing // events to come

	log  *slog.Logger // nil for slog.Default
	opts Options

	samples [kinds]stats.Cache[sampleKey, *sample]
	servers servers
	bound   bound
}

var _ observe.Observer = (*Observer)(nil)

// New returns an Observer that logs to log or, if log is nil, to [slog.Default].
func New(log *slog.Logger, options *Options) *Observer {
	o := &Observer{log: log}
	if options != nil {
		o.opts = *options
	}
	if o.opts.Every <= 0 {
		o.opts.Every = time.Minute
	}
	if o.opts.MaxLines <= 0 {
		o.opts.MaxLines = 60
	}
	for k := range o.samples {
		s := &o.samples[k]
		s.Max, s.Overflow, s.Create = maxSamples-1, otherKey(kind(k)), func(key sampleKey) *sample { return &sample{key: key} }
	}
	return o
}

var byDefault = New(nil, nil)

// Default returns the Observer that package middleware and backends use by default. It logs to
// [slog.Default].
func Default() *Observer { return byDefault }

// Ensure returns an Observer that passes events to o, which may be nil, and logs: unless
// [observe.All] has joined an Observer of this package in o, it adds Default. So metrics don't
// silence the log; New(slog.New(slog.DiscardHandler), nil) does.
func Ensure(o observe.Observer) observe.Observer {
	parts := observe.Parts(o)
	switch {
	case slices.ContainsFunc(parts, func(part observe.Observer) bool { _, logs := part.(*Observer); return logs }):
		return o
	case len(parts) == 0:
		return byDefault
	}
	return observe.All(o, byDefault)
}

// Decided logs a sample of refusals and of degraded decisions.
func (o *Observer) Decided(_ context.Context, e observe.Decided) {
	if e.Degraded {
		o.count(sampleKey{kind: degraded, name: e.Policy})
	}
	if e.Op == observe.OpTake && e.Outcome == observe.OutcomeRefused {
		key := sampleKey{kind: refused, name: e.Policy, limit: e.Limit}
		s := o.samples[refused].Get(key)
		if s.key == key {
			s.refused(e.Binding)
		}
		if o.opts.ShowKeys {
			s.show(e.Key)
		}
		s.count.Add(1)
		o.report(s)
	}
}

func (o *Observer) count(key sampleKey) {
	s := o.samples[key.kind].Get(key)
	s.count.Add(1)
	o.report(s)
}

// Moved logs a sample of lost counts, and of counts that did not move.
func (o *Observer) Moved(e observe.Moved) {
	switch {
	case e.Err != nil:
		s := o.samples[notMoved].Get(sampleKey{kind: notMoved, name: e.From, to: e.To})
		s.notMoved(e.Err)
		o.report(s)
	case e.Lost:
		o.count(sampleKey{kind: lost, name: e.From, to: e.To})
	}
}

// Failed logs failures, for each shard and cause: the first at once, then a line every
// Options.Every while they last, and a line when they are over.
func (o *Observer) Failed(e observe.Failed) {
	s := o.samples[failed].Get(sampleKey{kind: failed, name: e.Backend, to: e.Shard, cause: e.Cause})
	s.failed(e)
	o.report(s)
}

// Warned logs e regardless of MaxLines: it does not come again.
func (o *Observer) Warned(e observe.Warned) {
	attrs := make([]slog.Attr, 0, 2)
	if e.Policy != "" {
		attrs = append(attrs, slog.String("policy", e.Policy))
	}
	o.logger().LogAttrs(context.Background(), slog.LevelWarn, "rate limit: "+e.Text, append(attrs, slog.String("hint", e.Hint))...)
}

// Checked logs the changes of a server: whether it answers, whether a replica has its primary,
// and whether its clock and this process' are close.
func (o *Observer) Checked(e observe.Checked) {
	for _, l := range o.servers.checked(e, time.Now(), &o.bound, o.opts.MaxLines) {
		o.logger().LogAttrs(context.Background(), l.level, l.text, l.attrs...)
	}
}

func (o *Observer) logger() *slog.Logger {
	if o.log == nil {
		return slog.Default()
	}
	return o.log
}

// report logs the events counted in s, unless a line will be due later.
func (o *Observer) report(s *sample) {
	if s.armed.Load() || !o.logger().Enabled(context.Background(), s.kind().level) || !s.armed.CompareAndSwap(false, true) {
		return
	}
	o.flush(s)
}

// flush logs the events counted in s, or that they are over. s is armed.
func (o *Observer) flush(s *sample) {
	wait, idle, bound := o.opts.Every, s.count.Load() == 0, o.opts.MaxLines
	if s.key.kind == refused { // clients cause them, and must not crowd out failures
		bound = (bound + 1) / 2
	}
	switch {
	case idle && s.kind().ending == "":
	case !o.bound.allow(time.Now(), bound):
		wait, idle = time.Second, false // to try again
	default:
		var l line
		l, idle = s.line()
		o.logger().LogAttrs(context.Background(), l.level, l.text, l.attrs...)
	}
	if !idle {
		time.AfterFunc(wait, func() { o.flush(s) })
		return
	}
	o.samples[s.key.kind].Drop(s.key, func(v *sample) bool { return v == s })
	s.armed.Store(false)
	if s.count.Load() > 0 { // counted since
		o.report(s)
	}
}

// bound bounds the lines of each minute.
type bound struct {
	mu    sync.Mutex
	began time.Time
	lines int
}

func (b *bound) allow(now time.Time, limit int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.began) >= time.Minute {
		b.began, b.lines = now, 0
	}
	if b.lines >= limit {
		return false
	}
	b.lines++
	return true
}

// brief returns text, cut off: an error may contain a server's reply, and a key may be long.
func brief(text string) string {
	const longest = 200
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return text
}
