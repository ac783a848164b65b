package weirlog

import (
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
)

// maxServers bounds the servers that are remembered.
const maxServers = 1024

// silentEvery is the least time between two lines that report one server as silent. If a server
// stops and answers in turn, one line reports how often.
const silentEvery = 10 * time.Second

// servers holds the last logged state of each server with a problem.
type servers struct {
	mu     sync.Mutex // events are about one a second and server
	byName map[stats.ServerName]*server
}

// server is the logged state of a server.
type server struct {
	silent, cut, skewed state

	open  bool      // as of the last check
	times int       // how often it stopped answering since the last line about that
	next  time.Time // no such line before
}

// state is whether a server has a problem, by the last line about it.
type state struct{ since time.Time } // zero if all is well

func (s *state) isWrong() bool { return !s.since.IsZero() }

// line is a line to log.
type line struct {
	level slog.Level
	text  string
	attrs []slog.Attr
}

// check makes the lines about one Checked.
type check struct {
	observe.Checked
	now   time.Time
	allow func() bool // whether another line may be logged
	lines []line
}

// checked returns a line for each difference between e and the logged state. Differences
// that the bound does not allow are found again by the next check.
func (s *servers) checked(e observe.Checked, now time.Time, bound *bound, maxLines int) []line {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := stats.ServerName{Backend: e.Backend, Shard: e.Shard, Server: e.Server}
	v := s.byName[key]
	if v == nil {
		v = new(server)
	}
	c := &check{Checked: e, now: now, allow: func() bool { return bound.allow(now, maxLines) }}
	v.answers(c)
	v.replicates(c)
	v.keepsTime(c)
	if !v.silent.isWrong() && !v.cut.isWrong() && !v.skewed.isWrong() && !now.Before(v.next) {
		delete(s.byName, key)
		return c.lines
	}
	if s.byName[key] == nil && (s.byName == nil || len(s.byName) >= maxServers) {
		s.byName = make(map[stats.ServerName]*server) // servers that still have a problem are logged again
	}
	s.byName[key] = v
	return c.lines
}

// change adds a line if wrong differs from s, with begins as its text if wrong, and ends if not.
func (c *check) change(s *state, wrong bool, begins, ends string, attrs ...slog.Attr) {
	if wrong == s.isWrong() || !c.allow() {
		return
	}
	l := line{slog.LevelWarn, begins, []slog.Attr{
		slog.String("backend", c.Backend), slog.String("shard", c.Shard), slog.String("server", c.Server),
	}}
	if wrong {
		s.since = c.now
	} else {
		l.level, l.text = slog.LevelInfo, ends
		l.attrs = append(l.attrs, slog.Duration("lasted", c.now.Sub(s.since).Round(time.Millisecond)))
		s.since = time.Time{}
	}
	l.attrs = append(l.attrs, attrs...)
	c.lines = append(c.lines, l)
}

// answers adds a line if the server has stopped answering, or answers again.
func (v *server) answers(c *check) {
	if c.Open && !v.open {
		v.times++
	}
	v.open = c.Open
	silent := v.silent.isWrong()
	if !silent && c.now.Before(v.next) {
		return
	}
	var attrs []slog.Attr
	if c.Err != nil {
		attrs = append(attrs, slog.String("error", brief(c.Err.Error())))
	}
	if v.times > 1 {
		attrs = append(attrs, slog.Int("times", v.times))
	}
	text := "rate limit: a server does not answer, and is sent nothing"
	switch c.Backend {
	case "synced":
		text = "rate limit: a root does not answer; processes count without what others send it"
	case "shares":
		text = "rate limit: a member does not answer; shares of quotas do not move to it or from it"
	}
	c.change(&v.silent, c.Open, text, "rate limit: a server answers again", attrs...)
	if !silent && v.silent.isWrong() {
		v.next, v.times = c.now.Add(silentEvery), 0
	}
}

// replicates adds a line if a replica has lost its primary, or found it again. The state of a
// replica that does not answer is unknown.
func (v *server) replicates(c *check) {
	if c.Replica && !c.Open {
		c.change(&v.cut, c.Cut, "rate limit: a replica is cut off from its primary, and is not asked", "rate limit: a replica has its primary again",
			slog.Duration("lag", c.Lag.Round(time.Millisecond)))
	}
}

// keepsTime adds a line if the clocks have moved too far apart, or are close again.
func (v *server) keepsTime(c *check) {
	if !c.SkewKnown || c.MaxSkew <= 0 {
		return
	}
	bound := c.MaxSkew
	if v.skewed.isWrong() { // until it is well below
		bound = bound * 9 / 10
	}
	c.change(&v.skewed, c.Skew.Abs() > bound,
		"rate limit: this process' clock and a server's differ by more than is good for limits; synchronize them",
		"rate limit: this process' clock and a server's are close again",
		slog.Duration("ahead", c.Skew.Round(time.Millisecond)), slog.Duration("limit", c.MaxSkew))
}
