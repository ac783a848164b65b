// Package weirlog logs what weir does: servers that stop answering and come back,
// replicas that lose their primary, refusals, and counts that were lost. No line has a
// key.
//
// What others log is not in it. Callers have the errors of decisions, and package
// middleware logs what they meant to the clients. Package redisbackend logs clocks that
// differ.
package weirlog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/weir/observe"
)

// Options configures an Observer. Nil and the zero value select the defaults.
type Options struct {
	// Every is the least time between two lines about refusals of one limit, about
	// degraded decisions of one policy, or about moves that went wrong. Each line has
	// the count since the last. If 0, a minute.
	Every time.Duration

	// MaxLines is how many lines there may be in a minute. What there is no line for
	// is logged later, if it is still true. If 0, 60.
	MaxLines int
}

// Observer is a observe.Observer that logs. Give it to the throttler and to each
// backend. It is safe for concurrent use.
type Observer struct {
	observe.Nothing // events to come

	log  *slog.Logger // nil for slog.Default
	opts Options
	now  func() time.Time

	samples samples
	servers servers
	bound   bound
}

var _ observe.Observer = (*Observer)(nil)

// New returns an Observer that logs to log, or if it is nil, to [slog.Default].
func New(log *slog.Logger, options *Options) *Observer {
	o := &Observer{log: log, now: time.Now}
	if options != nil {
		o.opts = *options
	}
	if o.opts.Every <= 0 {
		o.opts.Every = time.Minute
	}
	if o.opts.MaxLines <= 0 {
		o.opts.MaxLines = 60
	}
	return o
}

// Decided logs a sample of refusals and of degraded decisions.
func (o *Observer) Decided(_ context.Context, e observe.Decided) {
	if e.Degraded {
		o.sample(sampleKey{kind: degraded, name: e.Policy}, nil)
	}
	if e.Op == observe.OpTake && e.Outcome == observe.OutcomeRefused {
		o.sample(sampleKey{kind: refused, name: e.Policy, limit: e.Limit}, nil)
	}
}

// Moved logs a sample of the counts that were lost, and of those that did not move.
func (o *Observer) Moved(e observe.Moved) {
	switch {
	case e.Err != nil:
		o.sample(sampleKey{kind: notMoved, name: e.From, to: e.To}, e.Err)
	case e.Lost:
		o.sample(sampleKey{kind: lost, name: e.From, to: e.To}, nil)
	}
}

// Checked logs what changed at a server: whether it answers, and whether a replica has
// its primary.
func (o *Observer) Checked(e observe.Checked) {
	for _, l := range o.servers.checked(e, o.now(), &o.bound, o.opts.MaxLines) {
		o.logger().LogAttrs(context.Background(), l.level, l.text, l.attrs...)
	}
}

func (o *Observer) logger() *slog.Logger {
	if o.log == nil {
		return slog.Default()
	}
	return o.log
}

// sample counts an event, and logs the count since the last line of its key, if it is
// time for another.
func (o *Observer) sample(key sampleKey, err error) {
	s := o.samples.of(key)
	s.count.Add(1)
	now, kind, log := o.now(), samplings[key.kind], o.logger()
	if !log.Enabled(context.Background(), kind.level) || !s.claim(now, o.opts.Every) {
		return
	}
	if !o.bound.allow(now, o.opts.MaxLines) {
		s.next.Store(now.Add(time.Second).UnixNano()) // to try again
		return
	}
	attrs := append(key.attrs(), slog.Int64("count", s.count.Swap(0)))
	if err != nil {
		attrs = append(attrs, slog.String("error", brief(err)))
	}
	log.LogAttrs(context.Background(), kind.level, kind.text, attrs...)
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
