package policies

import (
	"fmt"
	"maps"
	"testing"

	"github.com/weir-go/weir/internal/testkit/testseed"
)

// same fails the test unless tr has what want has, and nothing else.
func same(t *testing.T, tr *trie[int], want map[string]int) {
	t.Helper()
	got := map[string]int{}
	tr.all(func(key string, value *int) bool {
		got[key] = *value
		return true
	})
	if tr.size != len(want) || !maps.Equal(got, want) {
		t.Fatalf("the trie has %d entries, %v; want %v", tr.size, got, want)
	}
	for key, value := range want {
		if found := tr.get(hashOf(key), key); found == nil || *found != value {
			t.Fatalf("%q is %v; want %d", key, found, value)
		}
	}
}

// A trie is a map, and each state of it stays as it is while later ones are made.
func TestTrieIsAMapThatKeepsItsPast(t *testing.T) {
	random := testseed.Rand(t, 0)
	var now trie[int]
	is := map[string]int{}
	type state struct {
		trie trie[int]
		was  map[string]int
	}
	var past []state
	for change := range 300 {
		past = append(past, state{now, maps.Clone(is)})
		o := new(owner)
		for range 1 + random.IntN(20) {
			key := fmt.Sprint("key", random.IntN(400))
			if random.IntN(3) > 0 {
				now.put(o, key, change)
				is[key] = change
				continue
			}
			_, was := is[key]
			delete(is, key)
			if now.remove(o, key) != was {
				t.Fatalf("remove of %q; want %t", key, was)
			}
		}
	}
	same(t, &now, is)
	for i := range past {
		same(t, &past[i].trie, past[i].was)
	}
	o := new(owner)
	for key := range is {
		now.remove(o, key)
	}
	if now.root != nil || now.size != 0 {
		t.Errorf("an empty trie has %d entries, and a root: %v", now.size, now.root)
	}
}

// Two keys of one hash are two entries.
func TestKeysOfOneHash(t *testing.T) {
	var root *node[int]
	o := new(owner)
	put := func(key string, value int, wantAdded bool) {
		t.Helper()
		var added bool
		if root, added = root.put(o, 0, &leaf[int]{hash: 42, key: key, value: value}); added != wantAdded {
			t.Errorf("%q: added %t", key, added)
		}
	}
	check := func(want map[string]int) {
		t.Helper()
		tr := trie[int]{root: root}
		for _, key := range []string{"a", "b", "c", "d"} {
			value, ok := want[key]
			if found := tr.get(42, key); (found != nil) != ok || ok && *found != value {
				t.Errorf("%q is %v; want %d, %t", key, found, value, ok)
			}
		}
	}
	put("a", 1, true)
	put("b", 2, true)
	put("c", 3, true)
	put("a", 4, false)
	old := trie[int]{root: root}
	root = root.remove(new(owner), 0, 42, "b")
	check(map[string]int{"a": 4, "c": 3})
	if found := old.get(42, "b"); found == nil || *found != 2 {
		t.Errorf("b was %v before it was removed; want 2", found)
	}
}
