package quota

import (
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
)

// A policy that is plain is one that the whole of Validate accepts.
func TestPlainPoliciesAreValid(t *testing.T) {
	rng := testseed.Rand(t, 0)
	of := func(values ...int64) int64 { return values[rng.IntN(len(values))] }
	plain := 0
	for range 100_000 {
		p := &Policy{Name: []string{"core", "", "a b", "x/y:z-1_2.3", "\xff"}[rng.IntN(5)]}
		for range of(0, 1, 1, 1, 2) {
			p.Limits = append(p.Limits, Limit{
				Quota: of(-1, 0, 1, 60, MaxQuota, MaxQuota+1), Window: time.Duration(of(-1, 0, 1, 1e6, 1e6+1, 3600e9, int64(MaxWindow), int64(MaxWindow)+1e6)),
				Algorithm: Algorithm(of(0, 0, 0, 1, 4, 9)), Aligned: of(0, 1) == 1, Burst: of(0, 0, 0, 1), MaxWait: time.Duration(of(0, 0, 0, 1e6)),
			})
		}
		if !p.isPlain() {
			continue
		}
		plain++
		if problem := p.Limits[0].validate(); problem != "" || !validName(p.Name) || len(p.Limits) != 1 {
			t.Fatalf("%+v is plain, and wrong: %s", p, problem)
		}
	}
	if plain == 0 {
		t.Error("no policy was plain")
	}
}
