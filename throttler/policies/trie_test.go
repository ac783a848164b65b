package policies

import (
	"fmt"
	"maps"
	"testing"

	"github.com/weir-go/weir/internal/testkit/testseed"
)

// same fails the test unless m has the entries of want, and no others.
func same(t *testing.T, m *trie[int], want map[string]int) {
	t.Helper()
	if got := maps.Collect(m.entries()); !maps.Equal(got, want) {
		t.Fatalf("the trie has %v; want %v", got, want)
	}
	for key, value := range want {
		if found := m.get(key); found != value {
			t.Fatalf("%q is %d; want %d", key, found, value)
		}
	}
}

// A trie is a map, and each state of it stays as it is while later ones are made.
func TestTrieIsAMapThatKeepsItsPast(t *testing.T) {
	random := testseed.Rand(t, 0)
	var now *trie[int]
	is := map[string]int{}
	type state struct {
		trie *trie[int]
		was  map[string]int
	}
	var past []state
	for change := range 300 {
		past = append(past, state{now, maps.Clone(is)})
		o := new(owner)
		for range 1 + random.IntN(20) {
			key := fmt.Sprint("key", random.IntN(400))
			if random.IntN(3) > 0 {
				now = now.put(o, key, change+1)
				is[key] = change + 1
				continue
			}
			delete(is, key)
			now = now.remove(o, key)
		}
	}
	same(t, now, is)
	for i := range past {
		same(t, past[i].trie, past[i].was)
	}
	o := new(owner)
	for key := range is {
		now = now.remove(o, key)
	}
	if now != nil {
		t.Errorf("an empty trie is %v; want nil", now)
	}
}

// A change of one key copies the nodes on the way to it, not all.
func TestATriesChangeCopiesFewNodes(t *testing.T) {
	var m *trie[int]
	o := new(owner)
	for i := range 10_000 {
		m = m.put(o, fmt.Sprint(i), i+1)
	}
	next := m.put(new(owner), "7", 0)
	if copied, all := nodes(next, next.owner), nodes(m, o); copied > 6 || all < 500 {
		t.Errorf("%d nodes of %d were copied", copied, all)
	}
	if m.get("7") != 8 || next.get("7") != 0 {
		t.Errorf("the key was %d and is %d", m.get("7"), next.get("7"))
	}
}

// nodes returns how many nodes of m are o's.
func nodes(m *trie[int], o *owner) (n int) {
	if m == nil {
		return 0
	}
	if m.owner == o {
		n++
	}
	for _, c := range m.children {
		n += nodes(c, o)
	}
	return n
}

// Two keys with the same hash are two entries.
func TestKeysOfOneHash(t *testing.T) {
	leaf := (*trie[int])(nil)
	o := new(owner)
	for i := range 2 * leafSize { // as if no bit of their hashes were left to tell them apart
		leaf = leaf.putAt(o, 66, fmt.Sprint(i), i+1)
	}
	if len(leaf.values) != 2*leafSize || leaf.get("0") != 1 || leaf.get("100") != 101 {
		t.Errorf("the leaf is %v", leaf.values)
	}
}
