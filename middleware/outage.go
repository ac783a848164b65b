package middleware

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"weak"

	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// failure is something that went wrong with one request.
type failure struct {
	err     error
	charges []throttler.Charge
	outcome outcome
}

// outcome is what the failure meant to the client.
type outcome uint8

const (
	servedWithoutLimit outcome = iota
	servedInDryRun
	answered503
	answered500
	notRefunded // the client keeps a charge that should have been refunded
	notSettled  // the client keeps the estimate in place of the real cost
	outcomes
)

var outcomeNames = [outcomes]string{"served_without_limit", "served_in_dry_run", "answered_503", "answered_500", "not_refunded", "not_settled"}

// Bounds of what a reporter remembers.
const (
	logInterval  = time.Second
	longInterval = 10 * time.Second // from the second line of a group on
	quietTime    = time.Minute
	maxGroups    = 64
	maxPolicies  = 16 // named in a line
	maxPartition = 64 // remembered of a group, to notice that it is over
)

// reporter logs failures of each backend, shard and cause: a line when they begin, a
// second after that and then every 10 s, with the count since the last line, and when
// they are over. There is never more than one line a second. All middlewares of a throttler share
// one for each logger, so that the bound holds for all of them together.
type reporter struct {
	log  *slog.Logger // nil for slog.Default
	seed maphash.Seed

	active atomic.Int32 // groups that hold failures
	mu     sync.Mutex
	groups map[groupKey]*group
}

// groupKey is what failures are grouped by. Neither keys nor addresses take part,
// so there are few.
type groupKey struct{ backend, shard, cause string }

// group is the failures of one key.
type group struct {
	groupKey
	began       time.Time
	lastFailure time.Time
	lastLine    time.Time
	total       int64
	lines       int   // about failures
	count       int64 // since lastLine, as are those below
	outcomes    [outcomes]int64
	policies    []string
	text        string              // of the first error, if it is one of arguments
	partitions  map[uint64]struct{} // that failed, hashed
	recovered   bool                // a decision succeeded that would have failed
	over        bool                // and that was logged
	timer       *time.Timer         // nil if no line is due
}

var reporters = struct {
	sync.Mutex
	of map[weak.Pointer[throttler.Throttler]]map[*slog.Logger]*reporter
}{of: make(map[weak.Pointer[throttler.Throttler]]map[*slog.Logger]*reporter)}

// reporterOf returns the reporter of t and log.
func reporterOf(t *throttler.Throttler, log *slog.Logger) *reporter {
	reporters.Lock()
	defer reporters.Unlock()
	key := weak.Make(t)
	byLog := reporters.of[key]
	if byLog == nil {
		byLog = make(map[*slog.Logger]*reporter)
		reporters.of[key] = byLog
		runtime.AddCleanup(t, func(key weak.Pointer[throttler.Throttler]) {
			reporters.Lock()
			defer reporters.Unlock()
			delete(reporters.of, key)
		}, key)
	}
	if byLog[log] == nil {
		byLog[log] = &reporter{log: log, seed: maphash.MakeSeed(), groups: make(map[groupKey]*group)}
	}
	return byLog[log]
}

func (p *reporter) logger() *slog.Logger {
	if p.log == nil {
		return slog.Default()
	}
	return p.log
}

// failed notes f, and logs its group if a line is due.
func (p *reporter) failed(f failure) {
	now := time.Now()
	p.mu.Lock()
	g := p.group(f.err, now)
	g.add(f, now)
	g.remember(p.partition(f.charges))
	line := p.due(g, now)
	p.mu.Unlock()
	line.log(p.logger())
}

// succeeded notes that a decision about charges was made.
func (p *reporter) succeeded(charges []throttler.Charge) {
	if p.active.Load() == 0 {
		return
	}
	now := time.Now()
	partition := p.partition(charges)
	var lines []line
	p.mu.Lock()
	for _, g := range p.groups {
		// The same partition is on the same shard. After a minute without
		// failures, any success will do.
		if _, ok := g.partitions[partition]; ok || now.Sub(g.lastFailure) > quietTime {
			g.recovered = true
			lines = append(lines, p.due(g, now))
		}
	}
	p.mu.Unlock()
	for _, l := range lines {
		l.log(p.logger())
	}
}

// partition returns a hash of where charges are counted.
func (p *reporter) partition(charges []throttler.Charge) uint64 {
	if len(charges) == 0 {
		return 0
	}
	partition := charges[0].Partition
	if partition == "" {
		partition = charges[0].Key
	}
	return maphash.String(p.seed, partition)
}

// group returns the group of err, for failures from now on.
func (p *reporter) group(err error, now time.Time) *group {
	key := keyOf(err)
	g := p.groups[key]
	if g == nil && len(p.groups) >= maxGroups {
		key = groupKey{cause: "others"}
		g = p.groups[key]
	}
	if g == nil {
		g = &group{groupKey: key, over: true}
		p.groups[key] = g
		p.active.Add(1)
	}
	if g.over {
		*g = group{groupKey: key, began: now, lastLine: g.lastLine, timer: g.timer, partitions: make(map[uint64]struct{})}
	}
	return g
}

func (g *group) add(f failure, now time.Time) {
	g.lastFailure = now
	g.recovered = false
	g.total++
	g.count++
	g.outcomes[f.outcome]++
	if g.text == "" && (errors.Is(f.err, throttler.ErrInvalid) || errors.Is(f.err, errTooLate)) {
		g.text = f.err.Error()
	}
	for _, c := range f.charges {
		if c.Policy != nil && len(g.policies) < maxPolicies && !slices.Contains(g.policies, c.Policy.Name) {
			g.policies = append(g.policies, c.Policy.Name)
		}
	}
}

func (g *group) remember(partition uint64) {
	if len(g.partitions) < maxPartition {
		g.partitions[partition] = struct{}{}
	}
}

// due returns the line that may be logged about g now, if any, and arms the timer
// of the next.
func (p *reporter) due(g *group, now time.Time) line {
	if g.timer != nil {
		return line{} // it comes with the timer
	}
	var l line
	switch over := g.recovered && now.Sub(g.lastFailure) >= logInterval; {
	case g.count > 0 && (g.lines < 2 || over || now.Sub(g.lastLine) >= longInterval):
		l = g.failureLine()
		g.lines++
		g.lastLine = now
	case g.count > 0: // later
	case g.recovered && !g.over:
		l = g.recoveryLine()
		g.over = true
		g.lastLine = now
	case g.over: // for a second
		delete(p.groups, g.groupKey)
		p.active.Add(-1)
		return line{}
	default:
		return line{} // quiet, until it fails or succeeds again
	}
	g.timer = time.AfterFunc(logInterval, func() {
		p.mu.Lock()
		g.timer = nil
		l := p.due(g, time.Now())
		p.mu.Unlock()
		l.log(p.logger())
	})
	return l
}

// line is a line of log, or nothing.
type line struct {
	level slog.Level
	text  string
	attrs []slog.Attr
}

func (l line) log(to *slog.Logger) {
	if l.text != "" {
		to.LogAttrs(context.Background(), l.level, l.text, l.attrs...)
	}
}

func (g *group) failureLine() line {
	l := line{level: slog.LevelWarn, text: "rate limit: failures", attrs: g.attrs()}
	if g.cause == causeInvalid {
		l.level = slog.LevelError
	}
	slices.Sort(g.policies)
	l.attrs = append(l.attrs, slog.Int64("count", g.count), slog.Any("policies", g.policies))
	for o, n := range g.outcomes {
		if n > 0 {
			l.attrs = append(l.attrs, slog.Int64(outcomeNames[o], n))
		}
	}
	if g.text != "" {
		l.attrs = append(l.attrs, slog.String("error", g.text))
	}
	g.count, g.outcomes, g.policies, g.text = 0, [outcomes]int64{}, nil, ""
	return l
}

func (g *group) recoveryLine() line {
	return line{level: slog.LevelInfo, text: "rate limit: failures are over", attrs: append(g.attrs(),
		slog.Int64("count", g.total), slog.Duration("lasted", g.lastFailure.Sub(g.began).Round(time.Millisecond)))}
}

func (g *group) attrs() []slog.Attr {
	attrs := make([]slog.Attr, 0, 8)
	if g.backend != "" {
		attrs = append(attrs, slog.String("backend", g.backend), slog.String("shard", g.shard))
	}
	return append(attrs, slog.String("cause", g.cause))
}

// keyOf returns the group of err.
func keyOf(err error) groupKey {
	key := groupKey{cause: causeOf(err)}
	var u *driver.UnavailableError
	if errors.As(err, &u) {
		key.backend, key.shard = u.Backend, u.Shard
	}
	return key
}

const causeInvalid = "invalid argument"

// causeOf returns the class of err, never a text that has addresses in it: each
// would be a group of its own.
func causeOf(err error) string {
	var dns *net.DNSError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, throttler.ErrInvalid):
		return causeInvalid
	case errors.Is(err, errTooLate):
		return "write timeout"
	case errors.Is(err, driver.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, breaker.ErrOpen):
		return "breaker open"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "deadline exceeded"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &dns):
		return "name not resolved"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return "connection lost"
	}
	if word := replyPrefix(err); word != "" {
		return word
	}
	return "other"
}

// replyPrefix returns the word that an error reply of Redis or Memcached begins
// with, such as READONLY or SERVER_ERROR, or "".
func replyPrefix(err error) string {
	switch e := err.(type) { //nolint:errorlint // it walks the tree
	case interface{ Unwrap() error }:
		return replyPrefix(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if word := replyPrefix(inner); word != "" {
				return word
			}
		}
		return ""
	case nil:
		return ""
	}
	word, _, _ := strings.Cut(err.Error(), " ")
	if len(word) < 2 || len(word) > 24 || strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return ""
	}
	return word
}
