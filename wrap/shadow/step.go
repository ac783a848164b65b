package shadow

import (
	"sync"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// steps records which counts of the candidate miss a charge or a settlement that the
// serving backend made, and until when they differ. A fixed window is in step again
// when the next one opens; any other count when nothing counts any more in either
// backend.
type steps struct {
	mu    sync.Mutex
	until map[keyed.Name]time.Time
	all   time.Time // until then no count is considered in step: there were too many to record
	bound int
}

// names name counts, so that a long key takes no more than a short one.
var names = keyed.NewHasher()

// missed records that the candidate lacks what the serving backend did to charges. d
// is the decision about them.
func (s *steps) missed(charges []quota.Charge, d *driver.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		latest := int64(0)
		for _, result := range d.ResultsOf(i) {
			latest = max(latest, result.ResetAt)
		}
		at := time.UnixMilli(d.Request.Now)
		s.extend(names.Of(&charges[i]), at, later(time.UnixMilli(latest), outlived(charges[i].Policy, at)))
	}
}

// outlived returns the time by which everything that may count at that time under p
// has ended, whatever the candidate has stored: it may have missed earlier charges,
// or made this one and lost the reply. What resets at once needs no such time,
// because the candidate's window ends with the serving one's.
func outlived(p *quota.Policy, at time.Time) time.Time {
	end := at
	for _, l := range p.Limits {
		if !l.Algorithm.ResetsAtOnce() {
			end = later(end, at.Add(algorithm.Lifetime(l)))
		}
	}
	return end
}

func (s *steps) extend(id keyed.Name, now, until time.Time) {
	if _, known := s.until[id]; !known && len(s.until) >= s.bound {
		for other, at := range s.until {
			if !now.Before(at) {
				delete(s.until, other)
			} else if at.After(s.all) {
				s.all = at
			}
		}
		if len(s.until) >= s.bound {
			clear(s.until)
		}
	}
	if until.After(s.until[id]) {
		s.until[id] = until
	}
}

// inStep reports whether the counts of both decisions about charges were in step
// when they were made. A count that was not stays out of step until both have
// reset.
func (s *steps) inStep(charges []quota.Charge, serving, candidate *decision.Decision) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := !serving.At().Before(s.all)
	first := 0
	for i := range charges {
		limits := charges[i].Policy.Limits
		id, last := names.Of(&charges[i]), first+len(limits)
		until, missing := s.until[id]
		switch {
		case !missing:
		case !serving.At().Before(until):
			delete(s.until, id)
		default:
			in = false
			for j := first; j < last; j++ {
				if !limits[j-first].Algorithm.ResetsAtOnce() {
					s.until[id] = later(s.until[id], later(serving.Limit(j).ResetAt, candidate.Limit(j).ResetAt))
				}
			}
		}
		first = last
	}
	return in
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
