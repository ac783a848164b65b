package algorithm

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

// Look returns the decision about r, by the states of its charges' counts, if
// nothing is to be charged.
func Look(r throttler.Request, state func(charge int) *State) throttler.Decision {
	d := throttler.Decision{Allowed: true, At: r.Now, Charges: r.Charges}
	for i := range r.Charges {
		c := &r.Charges[i]
		results := make([]Result, len(c.Policy.Limits))
		d.Allowed = state(i).Look(c.Policy.Limits, c.Cost, r.Now.UnixMilli(), results) && d.Allowed
		d.Limits = Statuses(d.Limits, c, results)
	}
	return d
}

// Statuses appends what results say of c's limits to statuses. cost is what
// was asked for; refused statuses are those that have a RetryAt.
func Statuses(statuses []throttler.Status, c *throttler.Charge, results []Result) []throttler.Status {
	for i := range results {
		r, l := &results[i], &c.Policy.Limits[i]
		s := throttler.Status{
			Policy: c.Policy, Key: c.Key, Cost: c.Cost, Limit: *l,
			Used:      r.Used,
			Remaining: max(l.Capacity()-r.Used, 0),
			ResetAt:   instant(r.ResetAt),
			Mark:      r.Mark,
		}
		switch r.RetryAt {
		case 0:
		case never:
			s.Refused, s.RetryAt = true, throttler.Never
		default:
			s.Refused, s.RetryAt = true, instant(r.RetryAt)
		}
		if r.StartAt != 0 {
			s.StartAt = instant(r.StartAt)
		}
		statuses = append(statuses, s)
	}
	return statuses
}

func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
