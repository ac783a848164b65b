package shadow

import "github.com/weir-go/weir/throttler/decision"

// Stats has counts since New.
type Stats struct {
	Compared int64 `json:"compared"` // takes that both decided
	Agreed   int64 `json:"agreed"`   // in everything below

	OnlyServingAllowed   int64 `json:"only_serving_allowed"`
	OnlyCandidateAllowed int64 `json:"only_candidate_allowed"`
	RemainingDiffers     int64 `json:"remaining_differs"` // of one limit or more
	ResetDiffers         int64 `json:"reset_differs"`     // of one limit or more

	NotInStep int64 `json:"not_in_step"` // takes in a window that the candidate missed a part of
	Failed    int64 `json:"failed"`      // the candidate returned an error
	Dropped   int64 `json:"dropped"`     // the queue was full: the candidate did not receive it
	Unsettled int64 `json:"unsettled"`   // settlements of takes that the candidate never made, or has already forgotten
}

// Stats returns the counts so far.
func (b *Backend) Stats() Stats { return b.stats.Now() }

// compare counts, and reports whether two decisions, about counts in step, differ.
func (s *Stats) compare(inStep bool, serving, candidate decision.Decision) bool {
	if !inStep {
		s.NotInStep++
		return false
	}
	remaining, reset := false, false
	for i := range serving.Limits() {
		s, o := serving.Limit(i), candidate.Limit(i)
		remaining = remaining || s.Remaining != o.Remaining
		reset = reset || !s.ResetAt.Equal(o.ResetAt)
	}
	s.Compared++
	switch {
	case serving.Allowed && !candidate.Allowed:
		s.OnlyServingAllowed++
	case candidate.Allowed && !serving.Allowed:
		s.OnlyCandidateAllowed++
	}
	if remaining {
		s.RemainingDiffers++
	}
	if reset {
		s.ResetDiffers++
	}
	if remaining || reset || serving.Allowed != candidate.Allowed {
		return true
	}
	s.Agreed++
	return false
}
