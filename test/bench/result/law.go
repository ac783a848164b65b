package result

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat"
)

// A Law says how y grows with x.
type Law struct {
	Linear bool    // y = A + B·x; otherwise y = A·x^B
	A, B   float64 // of the formula
	Error  float64 // root mean square of the relative errors
}

// FitLaw returns the power of x that fits the points best, or the best line if its error is
// smaller by a quarter. Errors are relative, so that small values count as much as large ones.
func FitLaw(x, y []float64) Law {
	weights, logX, logY := make([]float64, len(x)), make([]float64, len(x)), make([]float64, len(x))
	for i := range x {
		weights[i], logX[i], logY[i] = 1/(y[i]*y[i]), math.Log(x[i]), math.Log(y[i])
	}
	line, power := Law{Linear: true}, Law{}
	line.A, line.B = stat.LinearRegression(x, y, weights, false)
	power.A, power.B = stat.LinearRegression(logX, logY, nil, false)
	power.A = math.Exp(power.A)
	for _, l := range []*Law{&line, &power} {
		for i := range x {
			l.Error += math.Pow(l.Value(x[i])/y[i]-1, 2)
		}
		l.Error = math.Sqrt(l.Error / float64(len(x)))
	}
	if line.Error < power.Error*3/4 {
		return line
	}
	return power
}

// Value returns y at x.
func (l Law) Value(x float64) float64 {
	if l.Linear {
		return l.A + l.B*x
	}
	return l.A * math.Pow(x, l.B)
}

// String returns the formula, such as "2.1 + 0.43·x". A power that changes by less than a
// tenth over a factor of ten is called flat.
func (l Law) String() string {
	switch {
	case l.Linear:
		return fmt.Sprintf("%.3g %s %.2g·x", l.A, map[bool]string{true: "-", false: "+"}[l.B < 0], math.Abs(l.B))
	case math.Abs(l.B) < math.Log10(1.1):
		return fmt.Sprintf("%.3g, flat", l.A)
	}
	return fmt.Sprintf("%.3g·x^%.2f", l.A, l.B)
}
