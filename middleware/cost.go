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
	return reportOf(r, cost, func(inner *link) (err error) {
		marked, enforced := false, false
		for e := inner; e != nil; e = e.outer {
			if !e.marks(costReported) || enforced && e.m.DryRun == nil {
				continue
			}
			marked = true
			enforced = enforced || e.m.DryRun == nil
			err = cmp.Or(e.report("", cost), err)
		}
		if !marked {
			return invalid.Errorf("middleware: SetCost: no charge of the request is marked CostReported; mark the classifier, or name the policy by SetCostOf")
		}
		return err
	})
}

// SetCostOf is SetCost for the charges under the named policy, marked or not, in the handler's
// last [Take] that made any or, without one, in the innermost middleware that did.
func SetCostOf(r *http.Request, policy string, cost int64) error {
	return reportOf(r, cost, func(inner *link) error {
		for k := inner.takes; k != nil; k = k.next {
			if k.isUnder(policy) {
				return k.report(policy, cost)
			}
		}
		for e := inner; e != nil; e = e.outer {
			if e.isUnder(policy) {
				return e.report(policy, cost)
			}
		}
		return invalid.Errorf("middleware: SetCostOf: the request was not charged under a policy %q", policy)
	})
}

// reportOf checks cost, and calls do with r's innermost link, under the chain's lock.
func reportOf(r *http.Request, cost int64, do func(inner *link) error) error {
	e := linkOf(r)
	switch {
	case e == nil:
		return invalid.Errorf("middleware: SetCost: the request was not charged; no middleware of this package is in front of the handler, or it has no charges for this request")
	case cost < 0 || cost > quota.MaxQuota:
		return invalid.Errorf("middleware: SetCost: cost is %d; it must be from 0 to %d (2^53)", cost, int64(quota.MaxQuota))
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	return do(e)
}

// report is a cost that the handler has reported for one policy or, if policy is "", for all
// charges marked CostReported.
type report struct {
	policy string
	cost   int64
	next   *report
}

// marks reports whether some charge carries f.
func (k *take) marks(f flags) bool {
	return slices.ContainsFunc(k.flags[:], func(marks flags) bool { return marks&f != 0 })
}

// isUnder reports whether k makes a charge under the named policy.
func (k *take) isUnder(policy string) bool {
	return k.state != refused && slices.ContainsFunc(k.charges, func(c throttler.Charge) bool {
		return c.Policy != nil && c.Policy.Name == policy // a dry run serves charges with a nil Policy
	})
}

var errSettled = invalid.Errorf("middleware: SetCost: the charge is settled; report the cost before the response begins, or once, before the handler returns")

// report notes a cost for k, unless it comes too late. The caller holds the chain's lock.
func (k *take) report(policy string, cost int64) error {
	if k.state == charged && k.link.handler != running && k.link.isSettledAlone() {
		return errSettled
	}
	return k.note(policy, cost)
}

func (k *take) note(policy string, cost int64) error {
	k.link.m.unreported.Store(unreportedMax)
	if k.state > charged {
		return errSettled
	}
	for r := k.reports; r != nil; r = r.next {
		if r.policy == policy {
			r.cost = cost
			return nil
		}
	}
	k.reports = &report{policy, cost, k.reports}
	k.link.c.changes.Store(true)
	return nil
}

// costs returns the real cost of each of k.d.Charges, except the charges added for parents at
// the end, or nil if all are free. The caller holds the chain's lock.
func (k *take) costs(to takeState) []int64 {
	if to == unserved || to == free && !k.marks(noRefund) {
		return nil
	}
	if to == charged {
		return []int64{} // any settlement releases the units in flight
	}
	costs := make([]int64, len(k.d.Charges())-int(k.d.Added))
	for i := range costs {
		costs[i] = k.costOf(&k.d.Charges()[i], to)
	}
	return costs
}

// costOf returns the real cost of c, which may be the sum of several charges to one count,
// each with its own flags. A charge without a report keeps its cost, which the mode may have
// made less than was asked.
func (k *take) costOf(c *throttler.Charge, to takeState) int64 {
	var cost, unreported int64
	total, named := k.costReported(c.Policy.Name)
	general, marked := k.costReported("")
	for i, o := range k.charges {
		if o.Key != c.Key || o.Policy.Name != c.Policy.Name || cmp.Or(o.Partition, o.Key) != c.Partition {
			continue
		}
		switch f := k.flags[i]; {
		case to == free && f&noRefund == 0: // free
		case named:
			cost += total
			total = 0 // once
		case marked && f&costReported != 0:
			cost += general
			general = 0
		default:
			unreported += max(o.Cost, 1)
		}
	}
	return min(cost+min(unreported, c.Cost), quota.MaxQuota)
}

func (k *take) costReported(policy string) (cost int64, ok bool) {
	for r := k.reports; r != nil; r = r.next {
		if r.policy == policy {
			return r.cost, true
		}
	}
	return 0, false
}

// readCostHeaders reads the costs from the header of the response for the middleware with the
// innermost running handler, and those further out. It returns the innermost link.
func (c *chain) readCostHeaders() (innermost *link) {
	c.mu.Lock()
	innermost = c.first.innermost()
	e := innermost
	for x := e; x != nil; x = x.outer {
		if x.handler == running {
			e = x
			break
		}
	}
	c.mu.Unlock()
	e.readCostHeaders(c.w.Header)
	return innermost
}

// readCostHeaders reads the costs from a response's header, for the middleware of e and those
// further out, and removes them: they are not for the client. Costs of a Take are reported by
// SetCostOf alone.
func (e *link) readCostHeaders(header func() http.Header) {
	for x := e; x != nil; x = x.outer {
		if x.m.CostHeader != "" {
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
func (e *link) readCostHeader(h http.Header) {
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
		e.c.mu.Lock()
		err = e.note("", cost)
		e.c.mu.Unlock()
	}
	if err != nil {
		e.m.fail(err, e.charges, observe.ResultNotSettled)
	}
}
