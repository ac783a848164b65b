package result

import (
	"fmt"
	"math"
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
	line, power := fitLine(x, y), fitPower(x, y)
	if line.Error < power.Error*3/4 {
		return line
	}
	return power
}

// At returns y at x.
func (l Law) At(x float64) float64 {
	if l.Linear {
		return l.A + l.B*x
	}
	return l.A * math.Pow(x, l.B)
}

// String returns the formula, such as "2.1 + 0.43·x". A power that changes by less than a
// tenth over a factor of ten is called flat.
func (l Law) String() string {
	switch {
	case l.Linear && l.B < 0:
		return fmt.Sprintf("%s - %s·x", digits(l.A), digits(-l.B))
	case l.Linear:
		return fmt.Sprintf("%s + %s·x", digits(l.A), digits(l.B))
	case math.Abs(l.B) < math.Log10(1.1):
		return digits(l.A) + ", flat"
	}
	return fmt.Sprintf("%s·x^%.2f", digits(l.A), l.B)
}

// digits returns v with two or three significant digits.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1 || a == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// fitLine fits a line, and weights each point by 1/y².
func fitLine(x, y []float64) Law {
	var w, wx, wy, wxx, wxy float64
	for i := range x {
		weight := 1 / (y[i] * y[i])
		w += weight
		wx += weight * x[i]
		wy += weight * y[i]
		wxx += weight * x[i] * x[i]
		wxy += weight * x[i] * y[i]
	}
	b := (w*wxy - wx*wy) / (w*wxx - wx*wx)
	l := Law{Linear: true, A: (wy - b*wx) / w, B: b}
	l.Error = l.rms(x, y)
	return l
}

// fitPower fits a line to the logarithms.
func fitPower(x, y []float64) Law {
	var n, sx, sy, sxx, sxy float64
	for i := range x {
		lx, ly := math.Log(x[i]), math.Log(y[i])
		n++
		sx += lx
		sy += ly
		sxx += lx * lx
		sxy += lx * ly
	}
	b := (n*sxy - sx*sy) / (n*sxx - sx*sx)
	l := Law{A: math.Exp((sy - b*sx) / n), B: b}
	l.Error = l.rms(x, y)
	return l
}

func (l Law) rms(x, y []float64) float64 {
	var sum float64
	for i := range x {
		off := l.At(x[i])/y[i] - 1
		sum += off * off
	}
	return math.Sqrt(sum / float64(len(x)))
}
