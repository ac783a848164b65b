package measure

import (
	"math/bits"
	"time"
)

// A histogram counts durations of up to an hour, each within 1 % of its value: in steps of
// 1 ns at first, and from 256 ns in steps of 1/128 of the next lower power of two.
type histogram struct {
	n      int64
	counts [(maxShift + 2) << 7]uint32
}

const maxShift = 34 // 2^(8+34) ns is more than an hour

func (h *histogram) add(d time.Duration) {
	h.n++
	h.counts[bucket(d)]++
}

func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(0, bits.Len64(v)-8)
	if shift > maxShift {
		return len(histogram{}.counts) - 1
	}
	return shift<<7 + int(v>>shift)
}

func (h *histogram) merge(o *histogram) {
	h.n += o.n
	for i, c := range o.counts {
		h.counts[i] += c
	}
}

// quantile returns the duration that a fraction q of all durations do not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	rank, seen := int64(q*float64(h.n)), int64(0)
	for i, c := range h.counts {
		if seen += int64(c); seen > rank {
			shift := max(0, i>>7-1)
			low := uint64(i-shift<<7) << shift
			return time.Duration(low + 1<<shift/2)
		}
	}
	return 0
}
