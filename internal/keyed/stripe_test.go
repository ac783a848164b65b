package keyed_test

import (
	"math"
	"slices"
	"testing"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/internal/testkit/testseed"
)

type thing struct {
	keyed.Entry
	used float64
}

func name(n uint64) keyed.Name { return keyed.Name{n, n} }

func used(v *thing) float64 { return v.used }

// The values of the lowest rank make room, but values to keep do not. Values without weight
// neither need nor make room.
func TestMakeRoom(t *testing.T) {
	s := keyed.Stripe[*thing]{Most: 3}
	var removed []float64
	remove := func(v *thing) { s.Remove(v); removed = append(removed, v.used) }
	room := func(weight int) bool { return s.MakeRoom(weight, used, remove) }
	for i, u := range []float64{0.5, 0.25, keyed.Keep} {
		if !room(1) {
			t.Fatal("there is no room in a stripe that is not full")
		}
		s.Add(name(uint64(i)), 1, &thing{used: u})
	}
	s.Add(name(9), 0, &thing{used: -1})
	if !room(1) || !slices.Equal(removed, []float64{0.25}) {
		t.Errorf("for one value, %v made room; want 0.25", removed)
	}
	if !room(2) || !slices.Equal(removed, []float64{0.25, 0.5}) {
		t.Errorf("for a heavier one, %v made room; want 0.25 and 0.5", removed)
	}
	if room(3) || len(removed) != 2 {
		t.Errorf("%v made room; one of the two that are left is to be kept, and the other is not in the way", removed)
	}
	s.Add(name(10), 2, &thing{used: 0.125})
	if !room(2) || len(removed) != 3 {
		t.Errorf("%v made room; want 0.125, which was as heavy, alone", removed)
	}
	if s.Get(name(2)) == nil || s.Get(name(9)) == nil || s.Get(name(0)) != nil {
		t.Error("what is there is not what was not removed")
	}
}

// A sweep visits every value, even if it removes some, and others are removed and added
// between its steps.
func TestSweep(t *testing.T) {
	r := testseed.Rand(t, 1)
	for range 200 {
		s := keyed.Stripe[*thing]{Most: math.MaxInt}
		n := uint64(r.IntN(5 * keyed.AtOnce))
		for i := range n {
			s.Add(name(i), 1, &thing{used: float64(i % 3)})
		}
		seen := map[*thing]int{}
		gone := map[*thing]bool{}
		before := slices.Clone(s.Values())
		for end := math.MaxInt; end > 0; {
			looked := len(seen)
			end = s.Sweep(end, func(v *thing) bool { seen[v]++; return v.used == 0 })
			if len(seen)-looked > keyed.AtOnce {
				t.Fatalf("a step looked at %d values", len(seen)-looked)
			}
			if all := s.Values(); len(all) > 0 && r.IntN(2) == 0 {
				v := all[r.IntN(len(all))]
				s.Remove(v)
				gone[v] = true
				s.Add(name(n+uint64(r.Uint32())), 1, &thing{used: 1})
			}
		}
		for i, v := range before {
			if want := v.used == 0 || gone[v]; v.Removed() != want || (s.Get(name(uint64(i))) == nil) != want {
				t.Fatalf("value %d of %d: removed %v; want %v", i, n, v.Removed(), want)
			}
			if seen[v] == 0 && !gone[v] {
				t.Fatalf("value %d of %d was not looked at", i, n)
			}
		}
		for i, v := range s.Values() {
			if v.Removed() || s.Get(v.Name()) != s.Values()[i] {
				t.Fatal("a value that is there is not found by its name")
			}
		}
	}
}
