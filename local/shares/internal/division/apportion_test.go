package division

import (
	"slices"
	"testing"

	"github.com/weir-go/weir/internal/testkit/testseed"
)

// Shares are whole, add up to the total, and are at least the minimum, whatever the weights.
func TestApportion(t *testing.T) {
	random := testseed.Rand(t, 0)
	odd := []float64{0, 1, 1e30, 1e-30}
	for range 20_000 {
		n := 1 + random.IntN(12)
		total := []int64{0, 1, 7, 300, 1_000_003, maxTotal}[random.IntN(6)]
		low := random.Int64N(total/int64(n) + 2)
		weights, held := make([]float64, n), make([]int64, n)
		for i := range weights {
			if weights[i] = random.Float64(); random.IntN(3) == 0 {
				weights[i] = odd[random.IntN(len(odd))]
			}
			held[i] = random.Int64N(total/int64(n) + 1)
		}
		shares := apportion(total, low, slices.Clone(weights), held)
		var sum int64
		for _, s := range shares {
			sum += s
		}
		if sum != total || slices.Min(shares) < min(low, total/int64(n)) {
			t.Fatalf("apportion(%d, %d, %v, %v) = %v, which add up to %d", total, low, weights, held, shares, sum)
		}
	}
}

func TestShares(t *testing.T) {
	even := []int64{100, 100, 100}
	for _, c := range []struct {
		weights []float64
		held    []int64
		want    []int64
	}{
		{[]float64{0, 0, 0}, even, []int64{100, 100, 100}},
		{[]float64{1, 0, 0}, []int64{0, 0, 0}, []int64{280, 10, 10}}, // no damping from nothing
		{[]float64{1, 0, 0}, even, []int64{235, 33, 32}},
		{[]float64{1, 0, 0}, []int64{235, 33, 32}, []int64{269, 16, 15}},
		{[]float64{1, 0, 0}, []int64{269, 16, 15}, []int64{272, 14, 14}}, // small changes are slow
		{[]float64{1, 0, 0}, []int64{277, 12, 11}, []int64{277, 12, 11}},
		{[]float64{2, 1, 0}, []int64{0, 0, 0}, []int64{190, 100, 10}},
	} {
		if got := apportion(300, 10, c.weights, c.held); !slices.Equal(got, c.want) {
			t.Errorf("apportion(300, 10, %v, %v) = %v, want %v", c.weights, c.held, got, c.want)
		}
	}
}

// Equal weights divide evenly, and at once.
func TestEqualWeights(t *testing.T) {
	for name, weights := range map[string][]float64{
		"all are the most": {1e30, 1e30, 1e30},
		"all are zeroes":   {0, 0, 0},
	} {
		for _, units := range apportion(maxTotal, 0, weights, make([]int64, 3)) {
			if units < maxTotal/3 || units > maxTotal/3+1 {
				t.Errorf("%s: a member has %d units of %d, want a third", name, units, int64(maxTotal))
			}
		}
	}
	if got := roundShares(maxTotal, 0, []float64{0, 0}); got[0] != got[1] {
		t.Errorf("roundShares of zeroes = %v, want halves", got)
	}
}
