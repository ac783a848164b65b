package goredis

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// Each step is a report of one Sentinel, and the primary that follows from all reports.
func TestSentinelsAreBelievedByEpoch(t *testing.T) {
	const a, b, c = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
	s := newSentinels(&redis.UniversalOptions{MasterName: "m", Addrs: []string{"x:1", "y:1", "z:1"}})
	for i, step := range []struct {
		sentinel int
		report   report
		primary  string
		closes   bool // the connection to a
	}{
		{0, noReport, "", false},
		{1, report{addr: a, epoch: 3}, a, false},
		{0, report{addr: b, epoch: 2}, a, false}, // it missed a failover
		{2, report{addr: a, epoch: 3}, a, false},
		{1, noReport, a, false},
		{2, report{addr: b, epoch: 4, until: time.Now().Add(time.Hour)}, b, true}, // announced
		{1, report{addr: a, epoch: 3}, b, false},
		{2, report{addr: a, epoch: 3}, b, false}, // not confirmed yet
		{2, report{addr: b, epoch: 4}, b, false}, // confirmed
		{2, report{addr: a, epoch: 3}, a, false}, // as after SENTINEL RESET
		{0, noReport, a, false},
		{1, noReport, a, false},
		{2, noReport, a, false}, // all are gone: no report names another
		{0, report{addr: c, epoch: 0}, c, true},
	} {
		closed := false
		clear(s.conns)
		conn := &boundedConn{Conn: failedConn{}, closed: func() { closed = true }}
		s.conns[weak.Make(conn)] = a
		s.hear(t.Context(), step.sentinel, step.report)
		runtime.KeepAlive(conn)
		if s.primary != step.primary || closed != step.closes {
			t.Errorf("step %d: the primary is %q, a's connection closed: %v; want %q, %v", i, s.primary, closed, step.primary, step.closes)
		}
	}
}

func TestPromotionIsAnnounced(t *testing.T) {
	s := newSentinels(&redis.UniversalOptions{MasterName: "m", Addrs: []string{"x:1"}})
	s.reports[0] = report{addr: "10.0.0.1:1", epoch: 7}
	for _, other := range []string{"", "slave", "slave n 10.0.0.9 1 @ other 10.0.0.1 1"} {
		s.announce(t.Context(), 0, other)
	}
	if got := s.reports[0]; got.addr != "10.0.0.1:1" {
		t.Errorf("after what others announced: %+v", got)
	}
	s.announce(t.Context(), 0, "slave 10.0.0.2:1 10.0.0.2 1 @ m 10.0.0.1 1")
	if got := s.reports[0]; got.addr != "10.0.0.2:1" || got.epoch != 8 || got.until.IsZero() {
		t.Errorf("after the announcement: %+v", got)
	}
}
