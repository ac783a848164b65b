package algorithm

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// The Redis scripts' arguments and replies about a limit: lua/decide.lua reads the arguments
// and writes the replies.

// AppendLimit appends l in the form that scripts read to decide at now: 1 kind, 6 window, 7
// quota, 7 capacity, and 6 the end of a calendar's window.
func AppendLimit(b []byte, l *quota.Limit, now int64) []byte {
	n := limitOf(l)
	b = append(b, byte(n.kind))
	b = AppendUint(b, windowBytes, n.window)
	b = AppendUint(b, countBytes, n.quota)
	b = AppendUint(b, countBytes, n.capacity)
	if n.kind == calendarKind {
		b = AppendUint(b, instantBytes, endOf(n.calendar, now))
	}
	return b
}

// ReadReply reads b, a script's reply about a state after a decision at now about cost, and
// writes a result for each of limits to results. charged says whether the decision charged the
// state. ReadReply reports whether cost fits, and fails if b is not a script's reply: a proxy,
// or a script that is not ours, may answer anything.
func ReadReply(b []byte, charged bool, limits []quota.Limit, cost, now int64, results []driver.Result) (fits bool, err error) {
	if len(b) == digits {
		w, err := ReadDigits(b)
		if err != nil {
			return false, err
		}
		if !w.IsOf(&limits[0]) {
			return false, errMalformed(b)
		}
		record := w.record()
		results[0] = resultAfter(&record, limitOf(&limits[0]), charged, cost, now)
	} else if err := readRows(b, charged, limits, cost, now, results); err != nil {
		return false, err
	}
	fits = true
	for i := range results {
		if err := plausible(&limits[i], cost, now, &results[i]); err != nil {
			return false, err
		}
		fits = fits && results[i].RetryAt == 0
	}
	return fits, nil
}

// readRows reads a record, or a log's reply, for each of limits. b is empty if the state was
// never charged.
func readRows(b []byte, charged bool, limits []quota.Limit, cost, now int64, results []driver.Result) error {
	p := parser{tail: b}
	for i := range limits {
		l := limitOf(&limits[i])
		r := record{kind: l.kind, window: l.window}
		if len(b) > 0 {
			if kind(p.uint(kindBytes)) != l.kind || p.uint(windowBytes) != l.window {
				return errMalformed(b)
			}
			if kinds[l.kind].log {
				results[i], p = readLog(p, l, charged, l.kind.units(cost), now)
				continue
			}
			p = l.kind.counter().parse(p, &r)
		}
		if p.failed || !r.countsFor(l) || charged && len(b) == 0 {
			return errMalformed(b)
		}
		results[i] = resultAfter(&r, l, charged, l.kind.units(cost), now)
	}
	if p.failed || len(p.tail) > 0 {
		return errMalformed(b)
	}
	return nil
}

// resultAfter returns the result for l, which has the record r, of a decision at now about
// cost. charged says whether the decision charged r.
func resultAfter(r *record, l limit, charged bool, cost, now int64) driver.Result {
	result := resultOf(r, l, now)
	switch {
	case charged:
		c := l.kind.counter().lastCharge(r, cost)
		result.StartAt, result.Mark = c.startAt, c.mark
	case cost > l.capacity:
		result.RetryAt = driver.NeverFits
	case cost > l.capacity-result.Used:
		result.RetryAt = l.kind.counter().retryAt(r, l, cost, now)
	}
	return result
}

// readLog reads a log's reply: 7 sum, 6 newest entry, 6 when one unit fits, 6 when cost fits.
func readLog(p parser, l limit, charged bool, cost, now int64) (driver.Result, parser) {
	used, newest, nextAt, retryAt := p.count(), p.instant(), p.instant(), p.instant()
	result := driver.Result{Used: used, ResetAt: now, NextAt: nextAt}
	if used > 0 {
		result.ResetAt = max(newest+l.window, now)
	}
	switch {
	case charged:
		result.Mark.At = newest
	case cost > l.capacity:
		result.RetryAt = driver.NeverFits
	default:
		result.RetryAt = retryAt
	}
	if kinds[l.kind].holds {
		result.NextAt, result.RetryAt = 0, 0
		if used >= l.capacity {
			result.NextAt = askAgainAt(l, now)
		}
		if !charged && cost > l.capacity-used {
			result.RetryAt = askAgainAt(l, now)
		}
	}
	return result, p
}

// plausible returns an error if no decision at now about cost has the result r.
func plausible(l *quota.Limit, cost, now int64, r *driver.Result) error {
	cost = l.Units(cost)
	isInstant := func(ms int64) bool { return ms >= now && ms <= max(now, maxInstant)+maxWindow }
	switch {
	case r.Used < 0 || r.Used > maxCount:
		return fmt.Errorf("used is %d", r.Used)
	case !isInstant(r.ResetAt):
		return fmt.Errorf("reset at is %d, at %d", r.ResetAt, now)
	case !plausibleRetry(r.RetryAt, cost > l.Capacity(), isInstant):
		return fmt.Errorf("retry at is %d, at %d, for a cost of %d", r.RetryAt, now, cost)
	case r.NextAt != 0 && (!isInstant(r.NextAt) || r.Used < l.Capacity()):
		return fmt.Errorf("next at is %d, at %d, with %d used of %d", r.NextAt, now, r.Used, l.Capacity())
	case r.StartAt != 0 && (!kinds[kindOf(l)].queue || !isInstant(r.StartAt)):
		return fmt.Errorf("start at is %d, at %d", r.StartAt, now)
	case min(r.Mark.At, r.Mark.Fraction) < 0 || r.Mark.At > max(now, maxInstant)+maxWindow || r.Mark.Fraction > maxCount:
		return fmt.Errorf("the mark is %v", r.Mark)
	}
	return nil
}

// plausibleRetry reports whether at can be a RetryAt. tooMuch says whether the cost is above
// the limit's capacity.
func plausibleRetry(ms int64, tooMuch bool, isInstant func(int64) bool) bool {
	switch {
	case ms == 0:
		return true
	case tooMuch:
		return ms == driver.NeverFits
	default:
		return ms > 0 && isInstant(ms)
	}
}

const maxWindow = int64(quota.MaxWindow / time.Millisecond)
