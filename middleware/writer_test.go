package middleware

import "testing"

func TestEachCombinationOfAbilitiesHasItsType(t *testing.T) {
	l := new(ledger)
	for can := range flushes | hijacks | pushes | notifies | copies + 1 {
		w := l.writer(can)
		if got := abilities(w); got != can {
			t.Errorf("%T has abilities %05b, want %05b", w, got, can)
		}
		for _, w := range []any{w, controlled{writer{l}}} {
			if _, ok := w.(interface{ WriteString(string) (int, error) }); !ok {
				t.Errorf("%T has no WriteString", w)
			}
		}
	}
}
