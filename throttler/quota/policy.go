package quota

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/exact"
	"github.com/weir-go/weir/internal/invalid"
)

// Policy is a named list of limits that hold together: a charge must fit them
// all. Treat a Policy as immutable once it is in use; to change a limit while
// running, use another Policy of the same name. Counts are found by name, key,
// algorithm and window, so they go on under the new one.
//
// If a limit with a new window does not have a record yet, it continues from the
// record of its algorithm whose window is nearest, and what that counts ends when it
// was to end, or earlier: when the new window would have ended it. A charge is added
// to the records of other windows too, as long as they live. While processes with the
// old policy and the new one run side by side, they give about the looser of
// both. docs/start/algorithms.md has the bound for each algorithm.
type Policy struct {
	// Name names the policy, and the resource in GitHub's headers: 1 to MaxNameBytes
	// of letters, digits, and . _ - / :
	Name string `json:"name,omitempty"`

	// Limits are the limits, at least one, at most MaxLimits. No two may have
	// both algorithm and window in common.
	Limits []Limit `json:"limits"`

	// Parent names a policy of the throttler's table that is charged, too, with the same
	// cost: see policies.Parent. If empty, the policy has no parent.
	Parent string `json:"parent,omitempty"`

	// ParentKey is the key that the parent is charged for. If empty, the parent is charged
	// only for keys with a ParentKey in their override in the table.
	ParentKey string `json:"parent_key,omitempty"`

	// Unit is the unit of the quotas and costs. The zero value is Requests.
	Unit Unit `json:"unit,omitempty"`

	// Hidden keeps the policy out of answers to clients: it is enforced, and a refusal has a
	// Retry-After, but headers, bodies and the status handler report the other policies alone.
	// Observers and decisions have it.
	Hidden bool `json:"hidden,omitempty"`

	// Until is when a policy of the throttler's table ends, by the throttler's clock: from then
	// on the table acts as if it did not contain the policy. If zero, it does not end. It has no
	// effect on a policy that is not in the table.
	Until time.Time `json:"until,omitzero"`
}

// HoldsAt reports whether p has not ended at now, in ms since the epoch.
func (p *Policy) HoldsAt(now int64) bool { return p.Until.IsZero() || now < p.Until.UnixMilli() }

// Holds reports whether one of the limits holds units: see [Algorithm.Holds].
func (p *Policy) Holds() bool {
	for i := range p.Limits {
		if p.Limits[i].Algorithm.Holds() {
			return true
		}
	}
	return false
}

// HoldsOnly reports whether all limits hold units.
func (p *Policy) HoldsOnly() bool {
	return !slices.ContainsFunc(p.Limits, func(l Limit) bool { return !l.Algorithm.Holds() })
}

// Charge returns a charge of cost 1 for key.
func (p *Policy) Charge(key string) Charge { return Charge{Policy: p, Key: key, Cost: 1} }

// Validate returns nil, or an error that wraps [ErrInvalid] and names the
// field. A throttler validates each policy that it meets; call Validate to find
// errors earlier.
func (p *Policy) Validate() error {
	if p == nil {
		return invalid.Errorf("quota: policy is nil; it must be a policy. A table or a configuration returns nil for a name that it lacks, perhaps a misspelled one")
	}
	if p.isPlain() {
		return nil
	}
	if !validName(p.Name) {
		return invalid.Errorf("quota: policy name is %q; it must be 1 to %d letters, digits, and . _ - / :", p.Name, MaxNameBytes)
	}
	if n := len(p.Limits); n == 0 || n > MaxLimits {
		return invalid.Errorf("quota: policy %q has %d limits; it must have from 1 to %d", p.Name, n, MaxLimits)
	}
	if problem := cmp.Or(p.parentProblem(), p.Unit.validate()); problem != "" {
		return invalid.Errorf("quota: policy %q: %s", p.Name, problem)
	}
	work := 0
	for i := range p.Limits {
		if problem := p.Limits[i].validate(); problem != "" {
			return invalid.Errorf("quota: policy %q: limit %d: %s", p.Name, i, problem)
		}
		if work += p.Limits[i].Work(); work > MaxWork {
			return invalid.Errorf("quota: policy %q: with limit %d, %v, its limits are %d units of work for a server; they may be %d: lower the quotas of sliding-logs, or take sliding-windows", p.Name, i, p.Limits[i], work, MaxWork)
		}
		for j := range i {
			if p.Limits[i].Algorithm.Holds() && p.Limits[j].Algorithm.Holds() {
				return invalid.Errorf("quota: policy %q: limits %d and %d are both %v; a decision holds one unit, so keep the smaller quota, with its lease", p.Name, j, i, p.Limits[i].Algorithm)
			}
			if a, b := &p.Limits[j], &p.Limits[i]; a.Algorithm == b.Algorithm && a.Window == b.Window && a.Calendar.Period == b.Calendar.Period {
				right := "only the smaller quota could ever refuse, so keep that one"
				if a.Aligned != b.Aligned {
					right = "one aligned and one not; keep one of them"
				}
				return invalid.Errorf("quota: policy %q: limits %d and %d are both a %v of %v; %s", p.Name, j, i, b.Algorithm, b.period(), right)
			}
		}
	}
	return nil
}

// isPlain reports whether p is a valid policy with one fixed window, as most policies are. A
// full validation takes a tenth of the time of a take in memory: the row memory/uniform of test/bench.
func (p *Policy) isPlain() bool {
	if len(p.Limits) != 1 || p.Unit != Requests || p.Parent != "" || p.ParentKey != "" {
		return false
	}
	l := &p.Limits[0]
	return l.Algorithm == FixedWindow && l.Burst == 0 && l.MaxWait == 0 && l.Calendar.IsZero() && l.Quota >= 1 && l.Quota <= MaxQuota &&
		l.Window >= time.Millisecond && l.Window <= MaxWindow && l.Window%time.Millisecond == 0 && validName(p.Name)
}

// parentProblem describes an error of p's parent, without the key: the text may go to a log.
// It returns "" if the parent is valid.
func (p *Policy) parentProblem() string {
	switch {
	case p.Parent == "" && p.ParentKey != "":
		return "it has a parent key and no parent; name the policy that is charged for the key"
	case p.Parent != "" && !validName(p.Parent):
		return fmt.Sprintf("parent is %q; it must be the name of a policy: 1 to %d letters, digits, and . _ - / :", p.Parent, MaxNameBytes)
	case p.Parent == p.Name:
		return "it is its own parent; name another policy"
	}
	return ""
}

func validName(name string) bool {
	if name == "" || len(name) > MaxNameBytes {
		return false
	}
	for i := range len(name) {
		if !nameBytes[name[i]] {
			return false
		}
	}
	return true
}

var nameBytes = func() (table [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:") {
		table[c] = true
	}
	return table
}()

// Warnings names the limits that can never refuse anything because another limit
// of the policy always refuses first, and an InFlight with a lease of more than an hour. Such a policy works, but probably not as its
// author meant. Package middleware warns of it; call Warnings for other policies, and print the result.
//
// Of two limits, the longer window must allow more units in all and fewer per
// second: next to 10 per 10 s, neither 600 per 600 s nor 20 per 1 s ever
// refuses. Warnings never names a LeakyBucket: it spaces the charges that it
// does not refuse.
func (p *Policy) Warnings() []string {
	var warnings []string
	for i, long := range p.Limits {
		for j, short := range p.Limits {
			if long.Length() <= short.Window || short.Window == 0 || long.Algorithm.Holds() || short.Algorithm.Holds() {
				continue
			}
			window := long.Window
			if window == 0 { // the longest of the calendar, and a window of short that begins before it
				window = periods[long.Calendar.Period].longest + clockChange + short.Window
			}
			switch {
			case !long.Algorithm.Queues() && long.Capacity() >= short.Capacity() && !exact.Exceeds(short.Quota, window.Milliseconds(), long.Quota, short.Window.Milliseconds()):
				warnings = append(warnings, fmt.Sprintf(
					"policy %q: limit %d, %v, can never refuse next to limit %d, %v, which lets no more than %.4g units through in %v; quota / window must rise as the window shrinks",
					p.Name, i, long, j, short, float64(short.Quota)*float64(window)/float64(short.Window), window))
			case !short.Algorithm.Queues() && float64(short.Capacity()) >= mostIn(long, short.Window):
				warnings = append(warnings, fmt.Sprintf(
					"policy %q: limit %d, %v, can never refuse next to limit %d, %v, which lets no more than %.4g units through in %v",
					p.Name, j, short, i, long, mostIn(long, short.Window), short.Window))
			}
		}
	}
	for i, l := range p.Limits {
		if l.Algorithm.Holds() && l.Window > longLease {
			warnings = append(warnings, fmt.Sprintf(
				"policy %q: limit %d, %v: a process that is killed holds its units for %v; a lease is renewed three times while it is held, so that 1m is enough",
				p.Name, i, l, l.Window))
		}
	}
	return warnings
}

// longLease is the longest lease of an InFlight that Warnings does not name.
const longLease = time.Hour

// mostIn returns the most units that l lets through in some time d, shorter than
// its window.
func mostIn(l Limit, d time.Duration) float64 {
	if a := l.Algorithm.traits(); !a.drains {
		return float64(a.edge) * float64(l.Quota)
	}
	return float64(l.Capacity()) + float64(l.Quota)*float64(d)/float64(l.Window)
}
