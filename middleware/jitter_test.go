package middleware

import (
	"math"
	"testing"
	"time"
)

func TestRetryAfterSeconds(t *testing.T) {
	for _, test := range []struct {
		wait time.Duration
		part float64
		want int64
	}{
		{0, 0, 1}, {time.Millisecond, 0.03, 1}, {time.Minute, 0, 60}, {time.Minute, 0.0001, 61}, {time.Minute, 0.03, 62},
		{59_500 * time.Millisecond, 0, 60}, {59_500 * time.Millisecond, 0.01, 61}, {time.Hour, 0.01, 3636}, {366 * 24 * time.Hour, 0.03, 32_571_072},
		{math.MaxInt64, 0, 3_155_760_000}, {math.MaxInt64, 0.03, 3_250_432_800},
	} {
		if got := retryAfterSeconds(test.wait, test.part); got != test.want {
			t.Errorf("%v, lengthened by %v of it: %d s, want %d", test.wait, test.part, got, test.want)
		}
	}
}
