package middleware

import (
	"iter"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// A Dialect writes the headers that report how much of the limits is left. [GitHub], [IETF],
// [Draft3], [OpenAI] and [Anthropic] are dialects. A program can define others, with
// comparable values: a pointer, or a struct without slices, maps and funcs.
type Dialect interface {
	// Names returns the names of all headers that Write may set, in any spelling. A
	// handler's own headers and trailers of these names are removed.
	Names() []string

	// Write sets the headers in h from r. It runs just before the final status of a response
	// is sent, and again if the headers must change. Write must not keep r, and must not call
	// other functions of this package.
	Write(h http.Header, r *Report)
}

// Dialects writes the headers of several dialects.
type Dialects []Dialect

// Names returns the names of all.
func (list Dialects) Names() (names []string) {
	for _, d := range list {
		names = append(names, d.Names()...)
	}
	return names
}

// Write writes the headers of all.
func (list Dialects) Write(h http.Header, r *Report) {
	for _, d := range list {
		d.Write(h, r)
	}
}

// NoHeaders hides the limits of a middleware: a refusal says when to try again, by
// Retry-After, and other middlewares that the request passes do not report the limits, either.
// It is for limits that are easier to get around if their state is known, such as a login's.
type NoHeaders struct{}

// Names returns nil.
func (NoHeaders) Names() []string { return nil }

// Write does nothing.
func (NoHeaders) Write(http.Header, *Report) {}

// table is a dialect's rows of headers.
type table []row

// row is the names of three headers about the limit that binds among policies with one of
// units, or among all policies if units is empty.
type row struct {
	limit, remaining, reset string
	units                   []quota.Unit
}

func (t table) names() (names []string) {
	for _, row := range t {
		names = append(names, row.limit, row.remaining, row.reset)
	}
	return names
}

// write writes the rows that have a limit in r. reset returns the last value of a row.
func (t table) write(h http.Header, r *Report, reset func(s *decision.Status) string) {
	for _, row := range t {
		if s, ok := r.BindingOf(row.units...); ok {
			h.Set(row.limit, strconv.FormatInt(s.Limit.Capacity(), 10))
			h.Set(row.remaining, strconv.FormatInt(s.Remaining, 10))
			h.Set(row.reset, reset(&s))
		}
	}
}

// flatten returns the dialects that d consists of.
func flatten(d Dialect) (flat []Dialect, err error) {
	switch d := d.(type) {
	case nil:
		return nil, invalid.Errorf("middleware: Options.Dialect has a nil among its Dialects; it must be a dialect, such as GitHub{}")
	case NoHeaders:
		return nil, nil
	case Dialects:
		for _, part := range d {
			parts, err := flatten(part)
			if err != nil {
				return nil, err
			}
			flat = append(flat, parts...)
		}
		return flat, nil
	}
	if !reflect.ValueOf(d).Comparable() {
		return nil, invalid.Errorf("middleware: Options.Dialect is a %T, which cannot be compared; it must be a pointer, or a struct without slices, maps and funcs", d)
	}
	return []Dialect{d}, nil
}

// Report is the state of the limits on a request, for a [Dialect] to write. It covers all
// middlewares that enforce a limit, except those with [NoHeaders] and policies that are Hidden.
type Report struct {
	takes  []*take   // the outermost first
	room   [1]*take  // most requests pass one middleware
	values [5]string // of GitHub's headers
}

// reset makes r a report about the takes in enforced whose middlewares have a dialect.
func (r *Report) reset(enforced []*take) {
	r.takes = r.room[:0]
	for _, k := range enforced {
		if !k.link.m.silent() {
			r.takes = append(r.takes, k)
		}
	}
}

// write writes the headers of each dialect that some middleware has, if there is a limit to report.
func (r *Report) write(h http.Header) {
	if !r.reports() {
		return
	}
	for i, k := range r.takes {
		for _, d := range k.link.m.dialects {
			if !slices.ContainsFunc(r.takes[:i], func(o *take) bool { return slices.Contains(o.link.m.dialects, d) }) {
				d.Write(h, r)
			}
		}
	}
}

// reports reports whether r has a limit.
func (r *Report) reports() (found bool) {
	r.limits(nil, func(shown) bool {
		found = true
		return false
	})
	return found
}

// Binding returns the limit to report if there is room for only one: of the limits that
// refused, the one that frees last; otherwise the one that this charge, repeated, would
// exhaust first or, of several, the one with the latest Reset.
func (r *Report) Binding() (binding decision.Status) {
	binding, _ = r.BindingOf()
	return binding
}

// BindingOf is Binding among the limits of policies with one of units, or of all policies if
// units is empty. It returns false if there is no such limit.
func (r *Report) BindingOf(units ...quota.Unit) (binding decision.Status, ok bool) {
	l := r.bindingOf(units)
	if l.take == nil {
		return binding, false
	}
	return l.status(), true
}

// bindingOf returns BindingOf's limit. It makes a Status, which is large, only of limits that it
// compares.
func (r *Report) bindingOf(units []quota.Unit) (binding shown) {
	r.limits(units, func(l shown) bool {
		if binding.take == nil || l.bindsBefore(&binding) {
			binding = l
		}
		return true
	})
	return binding
}

// Limits ranges over all limits, the outermost middleware's first, in the order of its charges
// and of their policies' limits, each as of the last decision about it.
func (r *Report) Limits() iter.Seq[decision.Status] {
	return func(yield func(decision.Status) bool) {
		r.limits(nil, func(l shown) bool { return yield(l.status()) })
	}
}

// shown is a limit that a Report shows.
type shown struct {
	take   *take
	index  int // among the limits of the take's decision
	policy *quota.Policy
	limit  *quota.Limit
}

func (l *shown) status() decision.Status { return l.take.d.Limit(l.index) }

func (l *shown) bindsBefore(o *shown) bool {
	a, b := l.status(), o.status()
	return a.BindsBefore(&b)
}

// limits ranges over the limits of policies with one of units, or of all policies if units is
// empty.
func (r *Report) limits(units []quota.Unit, yield func(shown) bool) {
	for _, k := range r.takes {
		first, charges := 0, k.d.Charges()
		for c := range charges {
			p := charges[c].Policy
			left := p.Hidden || len(units) > 0 && !slices.Contains(units, p.Unit) || len(r.takes) > 1 && r.decidedAfter(k, &charges[c])
			for i := range p.Limits {
				if !left && !yield(shown{k, first + i, p, &p.Limits[i]}) {
					return
				}
			}
			first += len(p.Limits)
		}
	}
}

// Now returns the time of the report, in whole milliseconds, UTC: the latest StartAt of the
// decisions, because a request that waits for its start is answered then.
func (r *Report) Now() (now time.Time) {
	for _, k := range r.takes {
		if start := k.d.StartAt(); start.After(now) {
			now = start
		}
	}
	return now
}

// silent reports whether t has no dialect, and its limits are not reported.
func (t *throttle) silent() bool { return len(t.dialects) == 0 }

// setDialects sets the fields of t that follow from Options.Dialect.
func (t *throttle) setDialects() error {
	if t.Dialect == nil {
		t.Dialect = GitHub{}
	}
	flat, err := flatten(t.Dialect)
	if err != nil {
		return err
	}
	if d, isList := t.Dialect.(Dialects); isList && len(d) == 0 {
		return invalid.Errorf("middleware: Options.Dialect is an empty list of Dialects; it must have one, or be NoHeaders")
	}
	t.dialects = flat
	names := Dialects(flat).Names()
	for _, name := range names {
		if name == "" || !isToken(name) {
			return invalid.Errorf("middleware: Options.Dialect has a header of the name %q; it must be a header's name, such as X-RateLimit-Limit", name)
		}
		if !isRateHeader(name) {
			t.otherNames = append(t.otherNames, name)
		}
	}
	t.exposed = strings.Join(append(names, "Retry-After"), ", ")
	return nil
}

// isRateHeader reports whether name is a rate header of t's dialects, of GitHub or of the IETF.
func (t *throttle) isRateHeader(name string) bool {
	return isRateHeader(name) || slices.ContainsFunc(t.otherNames, func(header string) bool { return strings.EqualFold(name, header) })
}
