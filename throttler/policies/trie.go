package policies

import (
	"hash/maphash"
	"iter"
	"maps"
	"slices"
)

// trie is an immutable map with string keys: a change copies the nodes on the way to one
// entry, and doesn't affect readers of the old trie. Its leaves are small maps, so replacing
// one policy of a million copies four nodes. Nil is empty.
type trie[V any] struct {
	owner    *owner       // may change the node in place
	children []*trie[V]   // by trieBits bits of a hash; nil in a leaf
	values   map[string]V // of a leaf
}

// owner is a change in progress. Nothing else has seen its nodes.
type owner struct{ _ byte }

const (
	trieBits = 5
	leafSize = 128 // entries of a leaf, at most, unless all have one hash
)

var seed = maphash.MakeSeed()

func hashOf(key string) uint64 { return maphash.String(seed, key) }

// get returns the value of key, or the zero value.
func (t *trie[V]) get(key string) (value V) {
	if t != nil && t.children != nil {
		for hash := hashOf(key); t != nil && t.children != nil; hash >>= trieBits {
			t = t.children[hash%(1<<trieBits)]
		}
	}
	if t == nil {
		return value
	}
	return t.values[key]
}

// put returns t with value under key, for o.
func (t *trie[V]) put(o *owner, key string, value V) *trie[V] { return t.putAt(o, 0, key, value) }

// putAt is put for a node that is depth bits of a hash below the root.
func (t *trie[V]) putAt(o *owner, depth uint, key string, value V) *trie[V] {
	t = t.ownedBy(o)
	if t.children != nil {
		c := t.child(depth, key)
		*c = (*c).putAt(o, depth+trieBits, key, value)
		return t
	}
	t.values[key] = value
	if len(t.values) > leafSize && depth < 64 {
		values := t.values
		t.values, t.children = nil, make([]*trie[V], 1<<trieBits)
		for key, value := range values {
			t.putAt(o, depth, key, value)
		}
	}
	return t
}

// remove returns t without key, for o.
func (t *trie[V]) remove(o *owner, key string) *trie[V] { return t.removeAt(o, 0, key) }

func (t *trie[V]) removeAt(o *owner, depth uint, key string) *trie[V] {
	if t == nil {
		return nil
	}
	t = t.ownedBy(o)
	if t.children != nil {
		c := t.child(depth, key)
		*c = (*c).removeAt(o, depth+trieBits, key)
	}
	delete(t.values, key)
	if len(t.values) == 0 && !slices.ContainsFunc(t.children, func(c *trie[V]) bool { return c != nil }) {
		return nil
	}
	return t
}

// child returns the address of the child for key in t, a node at depth.
func (t *trie[V]) child(depth uint, key string) **trie[V] {
	return &t.children[hashOf(key)>>depth%(1<<trieBits)]
}

// ownedBy returns t for o to change: t itself if it is o's, or a copy.
func (t *trie[V]) ownedBy(o *owner) *trie[V] {
	switch {
	case t == nil:
		return &trie[V]{owner: o, values: make(map[string]V)}
	case t.owner == o:
		return t
	}
	return &trie[V]{o, slices.Clone(t.children), maps.Clone(t.values)}
}

// entries ranges over the keys and their values, in no order.
func (t *trie[V]) entries() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) { t.walk(yield) }
}

func (t *trie[V]) walk(yield func(string, V) bool) bool {
	if t == nil {
		return true
	}
	for key, value := range t.values {
		if !yield(key, value) {
			return false
		}
	}
	return !slices.ContainsFunc(t.children, func(c *trie[V]) bool { return !c.walk(yield) })
}
