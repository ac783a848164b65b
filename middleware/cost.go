package middleware

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// SetCost reports the real cost of r, for handlers that know it only when the work is done,
// such as rows read or bytes sent. It applies to the charges marked [Classifier.CostReported]
// of the innermost middleware with such charges, and of each dry run. A charge that was too
// high is refunded in part; a charge that was too low is raised, even beyond the quota.
//
// A charge is settled once. If there is a report when the response begins, the charge is
// settled then, to the last report, and the response's headers show the cost. Otherwise it is
// settled when the handler returns, to the last report until then, and the headers show the
// first charge. A later report changes nothing, and is an error.
//
// The error wraps [throttler.ErrInvalid] and says why the call does nothing: no middleware
// asked for the cost, the cost is negative or above quota.MaxQuota, or the charge has been
// settled or refunded. It is nil if a middleware asked but has made no charge, because its
// backend does not answer or its dry run would have refused.
func SetCost(r *http.Request, cost int64) error {
	return reportOf(r, cost, func(inner *entry) (err error) {
		asked, enforced := false, false
		for e := inner; e != nil; e = e.outer {
			if !e.has(costReported) || enforced && e.m.DryRun == nil {
				continue
			}
			asked = true
			enforced = enforced || e.m.DryRun == nil
			err = cmp.Or(e.l.report(e, "", cost), err)
		}
		if !asked {
			return invalid.Errorf("middleware: SetCost: no charge of the request is marked CostReported; mark the classifier, or name the policy by SetCostOf")
		}
		return err
	})
}

// SetCostOf is SetCost for the charges under the named policy, marked or not, in the handler's
// last [Take] that made any or, without one, in the innermost middleware that did.
func SetCostOf(r *http.Request, policy string, cost int64) error {
	charges := func(e *entry) bool {
		return !e.answered && slices.ContainsFunc(e.charges, func(c throttler.Charge) bool {
			return c.Policy != nil && c.Policy.Name == policy // a dry run serves charges with a nil Policy
		})
	}
	return reportOf(r, cost, func(inner *entry) error {
		if x := inner.taken(charges); x != nil {
			return x.l.report(x, policy, cost)
		}
		for e := inner; e != nil; e = e.outer {
			if charges(e) {
				return e.l.report(e, policy, cost)
			}
		}
		return invalid.Errorf("middleware: SetCostOf: the request was not charged under a policy %q", policy)
	})
}

// reportOf checks cost, and calls do with r's innermost entry, under the ledger's lock.
func reportOf(r *http.Request, cost int64, do func(inner *entry) error) error {
	e := entryOf(r)
	switch {
	case e == nil:
		return invalid.Errorf("middleware: SetCost: the request was not charged; no middleware of this package is in front of the handler, or it has no charges for this request")
	case cost < 0 || cost > quota.MaxQuota:
		return invalid.Errorf("middleware: SetCost: cost is %d; it must be from 0 to %d (2^53)", cost, int64(quota.MaxQuota))
	}
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return do(e)
}

// report is a cost that the handler has reported for one policy or, if policy is "", for all
// charges marked CostReported.
type report struct {
	policy string
	cost   int64
	next   *report
}

// report notes a cost for e, unless it comes too late. The caller holds the lock.
func (l *ledger) report(e *entry, policy string, cost int64) error {
	if e.state == charged && e.progress.Load() != running && (l.sent.Load() != nothing || l.first.progress.Load() != running) {
		return errSettled
	}
	return e.note(policy, cost)
}

var errSettled = invalid.Errorf("middleware: SetCost: the charge is settled; report the cost before the response begins, or once, before the handler returns")

func (e *entry) note(policy string, cost int64) error {
	if e.state == settled || e.due != asCharged {
		return errSettled
	}
	for r := e.reports; r != nil; r = r.next {
		if r.policy == policy {
			r.cost = cost
			return nil
		}
	}
	e.reports = &report{policy, cost, e.reports}
	return nil
}

// settlement selects the costs that an entry is settled to.
type settlement uint8

const (
	asCharged     settlement = iota // to the charges; units in flight are released
	beforeHandler                   // to nothing: the handler does not run
	afterHandler                    // to the charges marked NoRefund: the handler ran and the response is free
	asReported                      // to the reported costs
)

// costs returns the real cost of each of e.d.Charges, except the charges added for parents at
// the end, or nil if all are free. The caller holds the ledger's lock.
func (e *entry) costs(why settlement) []int64 {
	if why == beforeHandler || why == afterHandler && !e.has(noRefund) {
		return nil
	}
	if why == asCharged {
		return []int64{} // any settlement releases the units in flight
	}
	costs := make([]int64, len(e.d.Charges())-int(e.d.Added))
	for i := range costs {
		costs[i] = e.costOf(&e.d.Charges()[i], why)
	}
	return costs
}

// costOf returns the real cost of c, which may be the sum of several charges to one count,
// each with its own flags. A charge without a report keeps its cost, which the mode may have
// made less than was asked.
func (e *entry) costOf(c *throttler.Charge, why settlement) int64 {
	var cost, unreported int64
	all, named := e.reported(c.Policy.Name)
	general, marked := e.reported("")
	for i, o := range e.charges {
		if o.Key != c.Key || o.Policy.Name != c.Policy.Name || cmp.Or(o.Partition, o.Key) != c.Partition {
			continue
		}
		switch f := e.flags[i]; {
		case why == afterHandler && f&noRefund == 0: // free
		case named:
			cost += all
			all = 0 // once
		case marked && f&costReported != 0:
			cost += general
			general = 0
		default:
			unreported += max(o.Cost, 1)
		}
	}
	return min(cost+min(unreported, c.Cost), quota.MaxQuota)
}

func (e *entry) reported(policy string) (cost int64, ok bool) {
	for r := e.reports; r != nil; r = r.next {
		if r.policy == policy {
			return r.cost, true
		}
	}
	return 0, false
}

// readCostHeaders reads the costs from a response's header, for the middleware of e and those
// further out, and removes them: they are not for the client. Costs of a Take are reported by
// SetCostOf alone.
func (e *entry) readCostHeaders(header func() http.Header) {
	for x := e; x != nil; x = x.outer {
		if x.m.CostHeader != "" && !x.inHandler {
			x.readCostHeader(header())
		}
	}
	for x := e; x != nil; x = x.outer { // now that all have read
		if x.m.CostHeader != "" {
			removeFields(header(), x.m.isCostHeader)
		}
	}
}

func (t *throttle) isCostHeader(name string) bool { return strings.EqualFold(name, t.CostHeader) }

// readCostHeader notes the cost in e's header or trailer, in any spelling, if it is set.
func (e *entry) readCostHeader(h http.Header) {
	name := e.m.CostHeader
	var values []string
	for key, v := range h {
		if e.m.isCostHeader(strings.TrimPrefix(key, http.TrailerPrefix)) {
			values = append(values, v...)
		}
	}
	if len(values) == 0 {
		return
	}
	cost, err := strconv.ParseInt(values[0], 10, 64)
	switch {
	case len(values) > 1:
		err = invalid.Errorf("middleware: %s has %d values; it must have one", name, len(values))
	case err != nil || cost < 0 || cost > quota.MaxQuota:
		err = invalid.Errorf("middleware: %s is %q; it must be a whole number from 0 to %d (2^53)", name, values[0], int64(quota.MaxQuota))
	default:
		e.l.mu.Lock()
		err = e.note("", cost)
		e.l.mu.Unlock()
	}
	if err != nil {
		e.m.fail(e.received, err, e.charges, observe.ResultNotSettled)
	}
}
