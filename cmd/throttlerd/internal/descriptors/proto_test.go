package descriptors

import (
	"strings"
	"testing"

	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-go/weir/config/envoyfile"
)

// nested returns descriptors, each below the previous one.
func nested(depth int) *rlsconfv3.RateLimitConfig {
	limit := &rlsconfv3.RateLimitPolicy{RequestsPerUnit: 1, Unit: rlsconfv3.RateLimitUnit_DAY}
	all := []*rlsconfv3.RateLimitDescriptor{{Key: "a", RateLimit: limit}}
	for range depth - 1 {
		all = []*rlsconfv3.RateLimitDescriptor{{Key: "a", RateLimit: limit, Descriptors: all}}
	}
	return &rlsconfv3.RateLimitConfig{Domain: "d", Descriptors: all}
}

// A small message may contain thousands of nested descriptors. Their paths would need
// gigabytes.
func TestDepth(t *testing.T) {
	f, err := FromProto(nested(100))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := New([]*envoyfile.File{f}, false, false); err != nil || len(s.Rules()) != 100 {
		t.Errorf("%v, %v; want 100 rules", s, err)
	}
	_, err = FromProto(nested(9900))
	if err == nil || !strings.HasSuffix(err.Error(), ".descriptors is wrong; it must be left out: at most 100 descriptors may be below one another") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%.200v", err)
	}
}

// A message may contain any number as a unit.
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
