package quota

import "testing"

func TestEveryAlgorithmHasItsTraits(t *testing.T) {
	for _, a := range Algorithms() {
		if t2 := a.traits(); t2.name == "" || t2.maxQuota == 0 || (t2.edge == 0) != t2.burst {
			t.Errorf("%v: %+v", a, *t2)
		}
		if parsed, err := ParseAlgorithm(a.String()); err != nil || parsed != a {
			t.Errorf("%v is parsed as %v, %v", a, parsed, err)
		}
	}
	unknown := Limit{Quota: 1, Window: 1e9, Algorithm: Algorithm(len(algorithms))}
	if unknown.validate() == "" {
		t.Errorf("%v is valid", unknown)
	}
}
