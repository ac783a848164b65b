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

// silentEvery is the least time between two lines that one server does not answer: of
// a server that stops and answers in turn, one line has the count.
const silentEvery = 10 * time.Second

// servers is what was last logged of each server that is not well.
type servers struct {
	mu  sync.Mutex // events are about one a second and server
	all map[stats.ServerName]*server
}

// server is what was logged of a server. Each is the zero time if all is well.
type server struct {
	silent, cut, skewed time.Time // since when

	open  bool      // as of the last check
	times int       // it stopped answering since a line said so
	next  time.Time // there is no such line before
}

// line is a line to log.
type line struct {
	level slog.Level
	text  string
	attrs []slog.Attr
}

// checked returns a line for each way in which e differs from what was logged. What the
// bound does not allow is found again by the next check.
func (s *servers) checked(e observe.Checked, now time.Time, bound *bound, maxLines int) []line {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := stats.ServerName{Backend: e.Backend, Shard: e.Shard, Server: e.Server}
	v := s.all[key]
	if v == nil {
		v = new(server)
	}
	var lines []line
	changed := func(since *time.Time, wrong bool, is, was string, attrs ...slog.Attr) {
		if wrong != since.IsZero() || !bound.allow(now, maxLines) {
			return
		}
		l := line{slog.LevelWarn, is, []slog.Attr{
			slog.String("backend", e.Backend), slog.String("shard", e.Shard), slog.String("server", e.Server),
		}}
		if wrong {
			*since = now
		} else {
			l.level, l.text = slog.LevelInfo, was
			l.attrs = append(l.attrs, slog.Duration("lasted", now.Sub(*since).Round(time.Millisecond)))
			*since = time.Time{}
		}
		l.attrs = append(l.attrs, attrs...)
		lines = append(lines, l)
	}

	var cause []slog.Attr
	if e.Err != nil {
		cause = append(cause, slog.String("error", brief(e.Err)))
	}
	if e.Open && !v.open {
		v.times++
	}
	v.open = e.Open
	if wasSilent := !v.silent.IsZero(); wasSilent || !now.Before(v.next) {
		if v.times > 1 {
			cause = append(cause, slog.Int("times", v.times))
		}
		changed(&v.silent, e.Open, "rate limit: a server does not answer, and is sent nothing", "rate limit: a server answers again", cause...)
		if !wasSilent && !v.silent.IsZero() {
			v.next, v.times = now.Add(silentEvery), 0
		}
	}
	if e.Replica && !e.Open {
		lag := slog.Duration("lag", e.Lag.Round(time.Millisecond))
		changed(&v.cut, e.Cut, "rate limit: a replica is cut off from its primary, and is not asked", "rate limit: a replica has its primary again", lag)
	}

	if e.SkewKnown && e.MaxSkew > 0 {
		most := e.MaxSkew
		if !v.skewed.IsZero() { // over when it is well below
			most = most * 9 / 10
		}
		changed(&v.skewed, e.Skew.Abs() > most,
			"rate limit: this process' clock and a server's differ by more than is good for limits; synchronize them",
			"rate limit: this process' clock and a server's are close again",
			slog.Duration("ahead", e.Skew.Round(time.Millisecond)), slog.Duration("limit", e.MaxSkew))
	}

	if v.silent.IsZero() && v.cut.IsZero() && v.skewed.IsZero() && !now.Before(v.next) {
		delete(s.all, key)
		return lines
	}
	if s.all[key] == nil && (s.all == nil || len(s.all) >= maxServers) {
		s.all = make(map[stats.ServerName]*server) // those that are still wrong are logged again
	}
	s.all[key] = v
	return lines
}
