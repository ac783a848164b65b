package division

import (
	"cmp"
	"math"
	"slices"
)

// damping is the part of the way to the target that shares move in one round, if much
// changes. The rest follows in the next rounds: after three, 98 % of it is done.
const damping = 0.75

// large is the part of the quota that must change hands for the full damping. A smaller
// change moves less far in proportion: demand that is measured by few requests differs
// from round to round, and no member uses the units that are being moved.
const large = 1.0 / 10

// little is the minimum part of the quota that must change hands; otherwise shares stay.
const little = 1.0 / 64

// apportion divides total by weights, which are the members' demands, so that a request has
// the same chance everywhere. The shares are whole units that add up to total, each at least
// low, or the even share if that is less. Weights of 0 divide evenly. apportion moves from
// held towards the target; held may add up to another total.
func apportion(total, low int64, weights []float64, held []int64) []int64 {
	n := int64(len(weights))
	low = min(low, total/n)
	var weight, before float64
	for i, w := range weights {
		weight += w
		before += float64(held[i])
	}
	target, old := make([]float64, n), make([]float64, n)
	var moves float64 // the part of total that changes hands
	for i, w := range weights {
		part := 1 / float64(n)
		if weight > 0 {
			part = w / weight
		}
		target[i] = float64(low) + part*float64(total-low*n)
		if old[i] = target[i]; before > 0 {
			old[i] = float64(held[i]) / before * float64(total)
		}
		moves += math.Abs(target[i]-old[i]) / 2 / max(float64(total), 1)
	}
	if int64(before) == total && moves < little && slices.Min(held) >= low {
		return held
	}
	gain := damping * min(moves/large, 1)
	for i := range target {
		target[i] = max(old[i]+gain*(target[i]-old[i]), float64(low))
	}
	return roundShares(total, low, target)
}

// roundShares returns whole numbers in proportion to exact, each at least low, that add up
// to total. The largest remainders are rounded up.
func roundShares(total, low int64, exact []float64) []int64 {
	n := int64(len(exact))
	var sum float64
	for _, x := range exact {
		sum += x - float64(low)
	}
	units, fractions := make([]int64, n), make([]float64, n)
	remaining := total
	for i, x := range exact {
		above := float64(total-low*n) / float64(n)
		if sum > 0 {
			above = (x - float64(low)) / sum * float64(total-low*n)
		}
		floor := math.Floor(above)
		units[i], fractions[i] = low+int64(floor), above-floor
		remaining -= units[i]
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(fractions[b], fractions[a]) })
	for _, i := range order[:remaining] {
		units[i]++
	}
	return units
}
