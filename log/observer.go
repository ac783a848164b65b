// Package weirlog logs what weir does: requests that could not be decided about, servers
// that stop answering and come back, replicas that lose their primary, clocks that differ,
// refusals, and counts that were lost. No line has a key.
//
// Callers of a throttler have the errors of its decisions, so these are not logged. Package
// middleware, which decides what they mean to clients, reports them to its Observer.
package weirlog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
)

// Options configures an Observer. Nil and the zero value select the defaults.
type Options struct {
	// Every is the time between two lines about refusals of one limit, about degraded
	// decisions of one policy, about moves that went wrong, or about failures of one
	// shard and cause. The first is logged at once, and each further line has the count
	// since the last. Failures are over when there are none for that long. If 0, a
	// minute.
	Every time.Duration

	// MaxLines is how many lines there may be in a minute, and refusals may have half of
	// them. What there is no line for is logged later, if it is still true. If 0, 60.
	MaxLines int
}

// Observer is an observe.Observer that logs. Give it to the throttler, to package
// middleware and to each backend. It is safe for concurrent use.
type Observer struct {
	observe.Nothing // events to come

	log  *slog.Logger // nil for slog.Default
	opts Options

	samples [kinds]stats.Cache[sampleKey, *sample]
	servers servers
	bound   bound
}

var _ observe.Observer = (*Observer)(nil)

// New returns an Observer that logs to log, or if it is nil, to [slog.Default].
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
		s.Max, s.Others, s.Create = maxSamples-1, others(kind(k)), func(key sampleKey) *sample { return &sample{key: key} }
	}
	return o
}

var byDefault = New(nil, nil)

// Default returns the Observer of package middleware and of backends that were given none.
// It logs to [slog.Default].
func Default() *Observer { return byDefault }

// Decided logs a sample of refusals and of degraded decisions.
func (o *Observer) Decided(_ context.Context, e observe.Decided) {
	if e.Degraded {
		o.count(sampleKey{kind: degraded, name: e.Policy})
	}
	if e.Op == observe.OpTake && e.Outcome == observe.OutcomeRefused {
		o.count(sampleKey{kind: refused, name: e.Policy, limit: e.Limit})
	}
}

func (o *Observer) count(key sampleKey) {
	s := o.samples[key.kind].Of(key)
	s.count.Add(1)
	o.report(s)
}

// Moved logs a sample of the counts that were lost, and of those that did not move.
func (o *Observer) Moved(e observe.Moved) {
	switch {
	case e.Err != nil:
		s := o.samples[notMoved].Of(sampleKey{kind: notMoved, name: e.From, to: e.To})
		s.notMoved(e.Err)
		o.report(s)
	case e.Lost:
		o.count(sampleKey{kind: lost, name: e.From, to: e.To})
	}
}

// Failed logs failures, for each shard and cause: the first at once, then a line a
// minute while there are any, and that they are over.
func (o *Observer) Failed(e observe.Failed) {
	s := o.samples[failed].Of(sampleKey{kind: failed, name: e.Backend, to: e.Shard, cause: e.Cause})
	s.failed(e)
	o.report(s)
}

// Warned logs e, whatever else is logged: it does not come again.
func (o *Observer) Warned(e observe.Warned) {
	attrs := make([]slog.Attr, 0, 2)
	if e.Policy != "" {
		attrs = append(attrs, slog.String("policy", e.Policy))
	}
	o.logger().LogAttrs(context.Background(), slog.LevelWarn, "rate limit: "+e.Text, append(attrs, slog.String("hint", e.Hint))...)
}

// Checked logs what changed at a server: whether it answers, whether a replica has its
// primary, and whether its clock and this process' are close.
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

// report logs what s has counted, unless a line will be due later.
func (o *Observer) report(s *sample) {
	if s.armed.Load() || !o.logger().Enabled(context.Background(), s.kind().level) || !s.armed.CompareAndSwap(false, true) {
		return
	}
	o.due(s)
}

// due logs what s has counted, or that it is over. s is armed.
func (o *Observer) due(s *sample) {
	wait, ended, most := o.opts.Every, s.count.Load() == 0, o.opts.MaxLines
	if s.key.kind == refused { // clients cause them, and must not crowd out what is wrong
		most = (most + 1) / 2
	}
	switch {
	case ended && s.kind().over == "":
	case !o.bound.allow(time.Now(), most):
		wait, ended = time.Second, false // to try again
	default:
		var l line
		l, ended = s.line()
		o.logger().LogAttrs(context.Background(), l.level, l.text, l.attrs...)
	}
	if !ended {
		time.AfterFunc(wait, func() { o.due(s) })
		return
	}
	o.samples[s.key.kind].Drop(s.key, func(v *sample) bool { return v == s })
	s.armed.Store(false)
	if s.count.Load() > 0 { // meanwhile
		o.report(s)
	}
}

// bound bounds the lines of each minute.
type bound struct {
	mu    sync.Mutex
	began time.Time
	lines int
}

func (b *bound) allow(now time.Time, most int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.began) >= time.Minute {
		b.began, b.lines = now, 0
	}
	if b.lines >= most {
		return false
	}
	b.lines++
	return true
}

// brief returns the text of err, cut off: a reply of a server may be in it.
func brief(err error) string {
	const longest = 200
	text := err.Error()
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return text
}
