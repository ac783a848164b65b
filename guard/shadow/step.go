package shadow

import (
	"sync"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// steps records which counts of the candidate miss a charge or a settlement that the
// serving backend made, and until when they differ. A fixed window is in step again
// when the next one opens, and any other count when neither backend counts anything
// any more.
type steps struct {
	mu         sync.Mutex
	until      map[keyed.Name]int64 // ms since the epoch
	everything int64                // until then no count is considered in step: there were too many to record
	bound      int
}

// names name counts, so that a long key takes no more memory than a short one.
var names = keyed.NewHasher()

// missed records that the candidate lacks a change that the serving backend made to the
// counts of charges. d is the decision about them.
func (s *steps) missed(charges []quota.Charge, d *driver.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := d.Request.Now
	for i := range charges {
		until := outlived(charges[i].Policy, now)
		for _, result := range d.ResultsOf(i) {
			until = max(until, result.ResetAt)
		}
		s.extend(names.Name(&charges[i]), until)
	}
}

// missedReset records that the candidate lacks a reset that the serving backend made.
func (s *steps) missedReset(charges []quota.Charge, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		until := now
		for _, l := range charges[i].Policy.Limits {
			until = max(until, now+algorithm.Lifetime(l).Milliseconds())
		}
		s.extend(names.Name(&charges[i]), until)
	}
}

// outlived returns the time by which everything that may count at now under p has
// ended, whatever the candidate has stored: it may have missed earlier charges, or made
// this one and lost the reply. A window that resets at once needs no such time, because
// the candidate's window ends with the serving one's.
func outlived(p *quota.Policy, now int64) int64 {
	end := now
	for _, l := range p.Limits {
		if !l.Algorithm.ResetsAtOnce() {
			end = max(end, now+algorithm.Lifetime(l).Milliseconds())
		}
	}
	return end
}

// extend records that a count is out of step until then. If there are too many such counts, no
// count is in step until all of them are.
func (s *steps) extend(id keyed.Name, until int64) {
	if _, ok := s.until[id]; !ok && len(s.until) >= s.bound {
		for _, end := range s.until {
			s.everything = max(s.everything, end)
		}
		clear(s.until)
	}
	s.until[id] = max(s.until[id], until)
}

// inStep reports whether the counts of both decisions about charges were in step
// when they were made. A count that was not stays out of step until both have
// reset.
func (s *steps) inStep(charges []quota.Charge, serving, candidate *driver.Decision) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := serving.Request.Now
	inStep := now >= s.everything
	for i := range charges {
		id := names.Name(&charges[i])
		until, missing := s.until[id]
		switch {
		case !missing:
		case now >= until:
			delete(s.until, id)
		default:
			inStep = false
			for j, l := range charges[i].Policy.Limits {
				if !l.Algorithm.ResetsAtOnce() {
					s.until[id] = max(s.until[id], serving.ResultsOf(i)[j].ResetAt, candidate.ResultsOf(i)[j].ResetAt)
				}
			}
		}
	}
	return inStep
}
