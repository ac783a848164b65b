package middleware

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/cause"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// StatusOptions configures [Status]. Nil and the zero value select the defaults.
type StatusOptions struct {
	// Deadline bounds the reading. At least a millisecond. If zero, DefaultDeadline.
	Deadline time.Duration

	// Observer receives each failure to answer, as Options.Observer does. If nil,
	// weirlog.Default(), which logs to slog.Default().
	Observer observe.Observer
}

// Status returns a handler that reports a client's limits, as GitHub's
// GET /rate_limit does, and charges nothing:
//
//	{"resources":{"core":{"limit":60,"used":1,"remaining":59,"reset":1893553446,
//	  "limits":[{"limit":60,"used":1,"remaining":59,"reset":1893553446,"window":"1h","algorithm":"fixed-window"}]}}}
//
// classify determines the policies to report, by a charge for each; costs do not matter. The
// first four numbers are GitHub's, about the limit that binds; limits lists all limits of the
// policy. Policies that are Hidden are left out. A unit other than requests is reported as unit, and a key that the table of policies
// blocks as "blocked":true. Policies that do not limit the key are listed as "unlimited", and
// are not among the resources. Before the first charge, reset is now. A replica may answer,
// and lag a little behind. If the counts of a policy can't be read because a shard does not
// answer, and limits are enforced without it, the policy is not among the resources, but
// listed as unavailable:
//
//	{"resources":{},"unavailable":["core"]}
//
// An invalid policy or option is an error that wraps [throttler.ErrInvalid]. Status panics if
// t is nil.
func Status(t *throttler.Throttler, classify Classifier, options *StatusOptions) (http.Handler, error) {
	if t == nil {
		panic("middleware: Status: the throttler is nil")
	}
	s := &status{throttler: t, classify: classify}
	if options != nil {
		s.StatusOptions = *options
	}
	s.Deadline = cmp.Or(s.Deadline, DefaultDeadline)
	s.Observer = weirlog.Ensure(cmp.Or(s.Observer, t.Observer()))
	if s.Deadline < minDeadline {
		return nil, invalid.Errorf("middleware: StatusOptions.Deadline is %v; it must be at least %v, or 0 for %v", s.Deadline, minDeadline, DefaultDeadline)
	}
	if err := classify.validate(); err != nil {
		return nil, err
	}
	s.throttler = t.WithServerTime(s.Deadline)
	return s, nil
}

type status struct {
	throttler *throttler.Throttler
	classify  Classifier
	StatusOptions
	warned atomic.Bool // of a limit in front
}

// counted is a resource as GitHub's GET /rate_limit reports it.
type counted struct {
	Limit     int64 `json:"limit"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	Reset     int64 `json:"reset"`
}

func countedOf(s *decision.Status) counted {
	return counted{s.Limit.Capacity(), s.Used, s.Remaining, epochSeconds(s.Reset().UnixMilli())}
}

type resource struct {
	counted                 // of the limit that binds
	Unit    string          `json:"unit,omitempty"` // unless it is requests
	Blocked bool            `json:"blocked,omitempty"`
	Limits  []resourceLimit `json:"limits"` // all

	binding decision.Status
}

type resourceLimit struct {
	counted
	Window    string `json:"window"`
	Algorithm string `json:"algorithm"`
}

type statusAnswer struct {
	Resources   map[string]*resource `json:"resources"`
	Unlimited   []string             `json:"unlimited,omitempty"`
	Unavailable []string             `json:"unavailable,omitempty"`
}

// appendNames appends the policy names of charges that are in neither names nor known.
func appendNames(names []string, charges []throttler.Charge, found map[string]*resource) []string {
	for i := range charges {
		if name := charges[i].Policy.Name; found[name] == nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func (s *status) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	answer := statusAnswer{Resources: make(map[string]*resource)}
	charges := slices.DeleteFunc(s.classify.Charges(r), func(c throttler.Charge) bool { return c.Policy != nil && c.Policy.Hidden })
	s.warnLimited(r, charges)
	if err := checkKeys(charges); err != nil {
		s.fail(w, r, charges, err)
		return
	}
	for _, group := range byPartition(charges) {
		for len(group) > 0 {
			d, err := s.throttler.Peek(r.Context(), group...)
			if err != nil {
				s.fail(w, r, group, err)
				return
			}
			group = answer.add(&d, group)
		}
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may have left
}

// warnLimited warns, once, that a middleware in front charges r to a count that s reports.
func (s *status) warnLimited(r *http.Request, charges []throttler.Charge) {
	for e := linkOf(r); e != nil && !s.warned.Load(); e = e.outer {
		shared := slices.ContainsFunc(e.charges, func(a throttler.Charge) bool {
			return slices.ContainsFunc(charges, func(b throttler.Charge) bool { return a.Policy != nil && b.Policy != nil && sameCount(&a, &b) })
		})
		if shared && e.m.throttler.Names == s.throttler.Names && e.m.DryRun == nil && !s.warned.Swap(true) {
			s.Observer.Warned(observe.Warned{
				Text: "requests for the status are charged, and refused when nothing remains",
				Hint: "the status handler must not be behind the limit; with chi, use With or a Group for the routes that are limited",
			})
		}
	}
}

// add adds d, a decision about charges, and returns the charges that d does not cover.
func (a *statusAnswer) add(d *throttler.Decision, charges []throttler.Charge) (remaining []throttler.Charge) {
	if d.Degraded {
		a.Unavailable = appendNames(a.Unavailable, charges, nil)
		return nil
	}
	addResources(a.Resources, d)
	if !d.Blocked {
		a.Unlimited = appendNames(a.Unlimited, charges, a.Resources)
		return nil
	}
	for _, c := range charges { // d is about the blocked keys alone
		if !slices.ContainsFunc(d.Charges(), func(b throttler.Charge) bool { return sameCount(&b, &c) }) {
			remaining = append(remaining, c)
		}
	}
	if len(remaining) == len(charges) { // a parent is blocked
		return nil
	}
	return remaining
}

func (s *status) fail(w http.ResponseWriter, r *http.Request, charges []throttler.Charge, err error) {
	if r.Context().Err() == nil {
		result := observe.ResultAnswered503
		if errors.Is(err, throttler.ErrInvalid) {
			result = observe.ResultAnswered500
		}
		s.Observer.Failed(cause.Event(err, charges, result))
	}
	if errors.Is(err, throttler.ErrInvalid) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(`{"message":"The rate limits are not configured correctly."}` + "\n"))
		return
	}
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte(`{"message":"The rate limits cannot be read at the moment."}` + "\n"))
}

// byPartition groups charges by partition, to read each group at once.
func byPartition(charges []throttler.Charge) [][]throttler.Charge {
	var groups [][]throttler.Charge
	place := make(map[string]int)
	for _, c := range charges {
		c.Cost, c.Mode = 1, quota.Enforce // charges to one count must have one mode
		if c.Partition == "" {
			c.Partition = c.Key
		}
		p, ok := place[c.Partition]
		if !ok || len(groups[p]) == quota.MaxCharges {
			p = len(groups)
			place[c.Partition] = p
			groups = append(groups, nil)
		}
		groups[p] = append(groups[p], c)
	}
	return groups
}

// addResources adds the policies of d that limit the key. An unlimited key
// is counted under limits of quota.MaxQuota.
func addResources(resources map[string]*resource, d *throttler.Decision) {
	for _, s := range d.Limits() {
		if s.Limit.Capacity() == quota.MaxQuota && !d.Blocked || s.Policy.Hidden {
			continue
		}
		r := resources[s.Policy.Name]
		if r == nil {
			r = &resource{Blocked: d.Blocked}
			if s.Policy.Unit != quota.Requests {
				r.Unit = s.Policy.Unit.String()
			}
			resources[s.Policy.Name] = r
		}
		counts := countedOf(&s)
		if len(r.Limits) == 0 || s.BindsBefore(&r.binding) {
			r.counted, r.binding = counts, s
		}
		r.Limits = append(r.Limits, resourceLimit{counts, s.Limit.Per(), s.Limit.Algorithm.String()})
	}
}
