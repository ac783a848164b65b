package rendezvous_test

import (
	"strconv"
	"testing"

	"github.com/weir-go/weir/internal/rendezvous"
)

const keys = 20_000

func TestEvenSpread(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	r := rendezvous.New(1, names)
	count := make([]int, len(names))
	for i := range keys {
		count[r.Choose("key"+strconv.Itoa(i))]++
	}
	for i, n := range count {
		if want := keys / len(names); n < want*9/10 || n > want*11/10 {
			t.Errorf("member %s has %d of %d keys, want about %d", names[i], n, keys, want)
		}
	}
}

func TestOneMoreMemberMovesOnlyItsShare(t *testing.T) {
	before := rendezvous.New(7, []string{"a", "b", "c"})
	after := rendezvous.New(7, []string{"a", "b", "c", "d"})
	moved := 0
	for i := range keys {
		from, to := before.Choose(strconv.Itoa(i)), after.Choose(strconv.Itoa(i))
		if from != to {
			moved++
			if to != 3 {
				t.Fatalf("key %d moved from member %d to %d, not to the new one", i, from, to)
			}
		}
	}
	if want := keys / 4; moved < want*9/10 || moved > want*11/10 {
		t.Errorf("%d of %d keys moved, want about %d", moved, keys, want)
	}
}

func TestOrderOfNamesDoesNotMatter(t *testing.T) {
	one, other := []string{"a", "b", "c"}, []string{"c", "a", "b"}
	r, q := rendezvous.New(0, one), rendezvous.New(0, other)
	for i := range 1000 {
		key := strconv.Itoa(i)
		if got, want := other[q.Choose(key)], one[r.Choose(key)]; got != want {
			t.Fatalf("key %s: %s, with names in another order %s", key, want, got)
		}
	}
}

func TestSeedMatters(t *testing.T) {
	names := []string{"a", "b"}
	r, q := rendezvous.New(1, names), rendezvous.New(2, names)
	same := 0
	for i := range 1000 {
		if r.Choose(strconv.Itoa(i)) == q.Choose(strconv.Itoa(i)) {
			same++
		}
	}
	if same < 400 || same > 600 {
		t.Errorf("%d of 1000 keys are where another seed puts them, want about 500", same)
	}
}
