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
