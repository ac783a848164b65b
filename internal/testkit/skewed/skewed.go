// Package skewed makes counts as of processes with clocks that are years off, for
// tests of how long stores keep them.
package skewed

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Count is a count that another store releases.
type Count struct {
	Name   string
	Charge quota.Charge // of 1 under its policy
	State  []byte

	// Most is the longest time that it counts, whatever the clocks.
	Most time.Duration
}

const (
	window = time.Hour
	units  = 10
	debt   = 31 // final cost of a charge of one
)

// Counts returns counts of all algorithms, and of policies that mix them. In each, one process
// has made a charge, and another has settled it. Each of their clocks is ten years ahead of
// now, ten years behind it, or right.
func Counts(now time.Time) []Count {
	policies := []*quota.Policy{}
	for _, a := range quota.Algorithms() {
		l := quota.Limit{Quota: units, Window: window, Algorithm: a}
		policies = append(policies,
			&quota.Policy{Name: a.String(), Limits: []quota.Limit{l}},
			&quota.Policy{Name: "window-and-" + a.String(), Limits: []quota.Limit{{Quota: units, Window: window / 2}, l}})
	}
	clocks := map[string]time.Time{"ahead": now.AddDate(10, 0, 0), "behind": now.AddDate(-10, 0, 0), "right": now}
	var counts []Count
	for _, p := range policies {
		for taker, takenAt := range clocks {
			for settler, settledAt := range clocks {
				for _, cost := range []int64{0, 1, debt} {
					c := p.Charge("alice")
					c.Partition, c.Cost = c.Key, 1
					var state algorithm.State
					d := algorithm.Take(driver.NewRequest(takenAt.UnixMilli(), c), []*algorithm.State{&state})
					algorithm.Settle(driver.Settlement{Now: settledAt.UnixMilli(), Charged: d, Costs: []int64{cost}}, []*algorithm.State{&state})
					counts = append(counts, Count{
						Name:   fmt.Sprintf("%s, taken by a clock that is %s, settled for %d by one that is %s", p.Name, taker, cost, settler),
						Charge: c,
						State:  state.Append(nil),
						Most:   max(2*window, debt*window/units),
					})
				}
			}
		}
	}
	return counts
}
