package algorithm

import (
	"slices"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// pause counts the record of a pause as a window with no units used. The record lives until
// its instant. To all limits it is a record of another policy, so no script decides about the
// state while it is there.
type pause struct{ fixedWindow }

// Pause makes s refuse everything until an instant. The latest of several pauses counts.
func (s *State) Pause(until, now int64) {
	if until <= now {
		return
	}
	window := min(until-now, maxWindow) // only bounds how long the record lives
	for i := range s.records {
		if r := &s.records[i]; r.kind == pauseKind {
			r.ms, r.window, r.endsAt = max(r.ms, until), max(r.window, window), 0
			return
		}
	}
	// The pause comes first, because a full state loses its last records.
	s.records = slices.Insert(s.records[:min(len(s.records), maxRecords-1)], 0, record{kind: pauseKind, window: window, instant: instant{ms: until}})
}

// refuse raises results so that no limit has room until the pause ends.
func (r *record) refuse(limits []quota.Limit, cost int64, results []driver.Result) {
	for i := range results {
		l, result := &limits[i], &results[i]
		result.NextAt = max(result.Next(l), r.ms)
		result.More = result.Remaining(l)
		result.Used, result.ResetAt = max(result.Used, l.Capacity()), max(result.ResetAt, r.ms)
		if cost > 0 && result.RetryAt != driver.NeverFits {
			result.RetryAt = max(result.RetryAt, r.ms)
		}
	}
}

// join adds nothing.
func (pause) join(*record, []record, int64, int64) {}
