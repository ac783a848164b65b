package testseed

import (
	"strings"
	"testing"
)

// The seed is fixed, unless WEIR_SEED sets it.
func TestSeed(t *testing.T) {
	t.Setenv("WEIR_SEED", "7")
	if got := Of(t); got != 7 {
		t.Errorf("Of = %d, want 7", got)
	}
	if a, b := Rand(t, 1).Uint64(), Locked(t, 1).Uint64(); a != b {
		t.Errorf("one stream of one seed begins with %d and with %d", a, b)
	}
	t.Setenv("WEIR_SEED", "-1")
	defer func() {
		if v, ok := recover().(string); !ok || !strings.Contains(v, `WEIR_SEED is "-1"`) {
			t.Errorf("a seed that is none: panic(%v)", v)
		}
	}()
	Value()
}

// The seed of any of several runs makes it the first, and neighboring seeds share no run.
func TestNth(t *testing.T) {
	seen := make(map[uint64]bool)
	for seed := range uint64(10) {
		if got := Nth(seed, 0); got != seed {
			t.Errorf("Nth(%d, 0) = %d; want the seed", seed, got)
		}
		for n := range uint64(100) {
			run := Nth(seed, n)
			if seen[run] || int64(run) < 0 {
				t.Errorf("Nth(%d, %d) = %d; want a positive number that no other seed has", seed, n, run)
			}
			seen[run] = true
		}
	}
}
