package division

import (
	"cmp"
	"slices"
	"time"
)

// flowProportional is flow proportional share, of Raghavan et al., "Cloud control
// with distributed rate limiting", 2007, for quotas per window. A member whose demand is
// within its share has what it demands. The rest is divided between the others by their
// number of flows, which is their demand by their largest key's: each flow has the
// same, however much it asks for.
func flowProportional(window time.Duration) Divide {
	return func(total int64, reports []Report) []float64 {
		n := len(reports)
		demand, flows := make([]float64, n), make([]float64, n)
		order := make([]int, n)
		var left, all float64 = float64(total), 0
		for i, r := range reports {
			order[i] = i
			demand[i] = r.Demand * window.Seconds()
			if flows[i] = 0; r.Largest > 0 {
				flows[i] = max(r.Demand/r.Largest, 1)
			}
			all += flows[i]
		}
		// From the least demand of a flow upwards: a member that asks for less than its
		// part of what is left has all that it asks for.
		slices.SortFunc(order, func(a, b int) int {
			return cmp.Compare(demand[a]*flows[b], demand[b]*flows[a])
		})
		weights := make([]float64, n)
		for _, i := range order {
			if flows[i] == 0 {
				continue
			}
			weights[i] = min(demand[i], left*flows[i]/all)
			left -= weights[i]
			all -= flows[i]
			if all < 1e-9 {
				all = 1e-9
			}
		}
		return weights
	}
}
