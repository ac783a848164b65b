package algorithm

import "math/bits"

// mulDiv returns a*b/c rounded down and the rest, through 128 bits. A quotient
// above the largest count or instant is returned as that, with no rest.
// a and b are not negative, c is positive.
func mulDiv(a, b, c int64) (quotient, rest int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return maxCount, 0
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if q > maxCount {
		return maxCount, 0
	}
	return int64(q), int64(r)
}

// ceilLevel returns (ms*quota + fraction) / window, rounded up, at most the
// largest count.
func ceilLevel(ms, quota, fraction, window int64) int64 {
	hi, lo := bits.Mul64(uint64(ms), uint64(quota))
	lo, carry := bits.Add64(lo, uint64(fraction), 0)
	hi += carry
	if hi >= uint64(window) {
		return maxCount
	}
	q, r := bits.Div64(hi, lo, uint64(window))
	if q >= maxCount {
		return maxCount
	}
	if r > 0 {
		q++
	}
	return int64(q)
}

func addCount(a, b int64) int64 { return min(a+b, maxCount) }

func addInstant(at, ms int64) int64 { return min(at+ms, maxInstant) }
