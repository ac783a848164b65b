package descriptors

import (
	"strings"
	"testing"

	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
)

// A message may have any number for a unit.
func TestUnitsThatThereAreNot(t *testing.T) {
	for _, unit := range []rlsconfv3.RateLimitUnit{-1, 0, 8, 255, 256, 257, 1 << 30} {
		_, err := FromProto(&rlsconfv3.RateLimitConfig{Domain: "d", Descriptors: []*rlsconfv3.RateLimitDescriptor{
			{Key: "a", RateLimit: &rlsconfv3.RateLimitPolicy{RequestsPerUnit: 1, Unit: unit}},
		}})
		if err == nil || !strings.Contains(err.Error(), "d: descriptors[0].rate_limit.unit is wrong; it must be second, minute,") {
			t.Errorf("unit %d: %v", unit, err)
		}
		if unit != 0 && Window(Unit(unit)) != 0 {
			t.Errorf("unit %d has a window of %v", unit, Window(Unit(unit)))
		}
	}
}
