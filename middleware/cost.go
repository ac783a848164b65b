package middleware

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

// SetCost reports the real cost of r, for handlers that know it only when the
// work is done: rows read, bytes sent. It goes to the charges marked
// [Classifier.CostReported] of the innermost middleware that has any, and of each
// dry run. A charge that was too high is refunded in part; one that was too low is
// raised, beyond the quota if need be. Reported before the response begins, the
// cost shows in the response's headers. The last report counts.
//
// The error wraps [throttler.ErrInvalid] and says why the call does nothing: no
// middleware asked for the cost, the cost is negative or above throttler.MaxQuota,
// or the charge was settled when the response began.
func SetCost(r *http.Request, cost int64) error {
	if c, ok := r.Context().Value(costKey{}).(*reportedCost); ok {
		c.set("", cost)
	}
	return nil
}

// SetCostOf is SetCost for the charges under the policy of that name, marked or
// not, in the innermost middleware that has any.
func SetCostOf(r *http.Request, policy string, cost int64) error {
	if c, ok := r.Context().Value(costKey{}).(*reportedCost); ok {
		c.set(policy, cost)
	}
	return nil
}

type costKey struct{}

// reportedCost is what a handler has reported: by policy, "" for all others.
type reportedCost struct {
	mu       sync.Mutex // handlers may report from goroutines of theirs
	byPolicy map[string]int64
}

// withCost returns r with a place for the reported cost. Middlewares that stand
// in front of each other share it: the cost is the request's.
func withCost(r *http.Request) (*http.Request, *reportedCost) {
	if c, ok := r.Context().Value(costKey{}).(*reportedCost); ok {
		return r, c
	}
	c := new(reportedCost)
	return r.WithContext(context.WithValue(r.Context(), costKey{}, c)), c
}

func (c *reportedCost) set(policy string, cost int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byPolicy == nil {
		c.byPolicy = make(map[string]int64)
	}
	c.byPolicy[policy] = cost
}

// costs returns the real cost of each charge, as far as reported, else what
// was charged. The second result says whether anything was reported.
func (res *response) costs() ([]int64, bool) {
	res.readCostHeader()
	res.cost.mu.Lock()
	defer res.cost.mu.Unlock()
	if res.cost.byPolicy == nil {
		return nil, false
	}
	costs := make([]int64, len(res.d.Charges))
	for i, c := range res.d.Charges {
		costs[i] = c.Cost
		if cost, ok := res.cost.byPolicy[c.Policy.Name]; ok {
			costs[i] = cost
		} else if cost, ok := res.cost.byPolicy[""]; ok {
			costs[i] = cost
		}
	}
	return costs, true
}

// readCostHeader takes the cost from the header or trailer, if there is one.
func (res *response) readCostHeader() {
	name := res.throttle.CostHeader
	if name == "" {
		return
	}
	value := res.header.Get(name)
	if value == "" {
		value = res.header.Get(http.TrailerPrefix + name)
	}
	if value == "" {
		return
	}
	cost, err := strconv.ParseInt(value, 10, 64)
	if err != nil || cost < 0 {
		res.throttle.report(res.request, fmt.Errorf("%s is %q; it must be a whole number, 0 or more", name, value))
		return
	}
	res.cost.set("", cost)
}
