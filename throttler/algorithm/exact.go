package algorithm

import "github.com/weir-go/weir/internal/exact"

// ceilLevel returns (ms*quota + fraction) / window, rounded up, at most the
// largest count.
func ceilLevel(ms, quota, fraction, window int64) int64 {
	level, remainder := exact.MulDiv(ms, quota, window)
	return addCount(level, (remainder+fraction+window-1)/window)
}

func addCount(a, b int64) int64 { return min(a+b, maxCount) }

func addInstant(instant, ms int64) int64 { return min(instant+ms, maxInstant) }
