// Package exact computes with products of counts and times, which need more than 64 bits.
package exact

import "math/bits"

// maxFloat is the largest count, quota.MaxQuota.
const maxFloat = 1 << 53

// MulDiv returns a*b/c rounded down, and the remainder. For a quotient above 2^53, it returns 2^53
// and 0. a and b are not negative, c is positive.
func MulDiv(a, b, c int64) (quotient, remainder int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return maxFloat, 0
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if q > maxFloat {
		return maxFloat, 0
	}
	return int64(q), int64(r)
}

// Exceeds reports whether a*b is above c*d. The arguments are not negative.
func Exceeds(a, b, c, d int64) bool {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	otherHi, otherLo := bits.Mul64(uint64(c), uint64(d))
	return hi > otherHi || hi == otherHi && lo > otherLo
}
