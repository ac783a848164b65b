package policies

import (
	"hash/maphash"
	"math/bits"
	"slices"
)

// trie is a map by strings that is never changed: a change copies the nodes on the way to
// one entry, and those that have the old trie go on reading that. So one policy of a
// million is replaced by copying four nodes. The zero value is empty.
type trie[V any] struct {
	root *node[V]
	size int
}

// node has a child for some of the values that trieBits bits of a hash can have: its depth
// says which bits.
type node[V any] struct {
	owner    *owner // may change the node in place
	has      uint64 // a bit for each child
	children []child[V]
}

// child is a node or the leaves of one hash.
type child[V any] struct {
	node *node[V]
	leaf *leaf[V]
}

type leaf[V any] struct {
	hash  uint64
	key   string
	value V
	next  *leaf[V] // of the same hash
}

// owner is a change in progress, that nothing else has seen the nodes of.
type owner struct{ _ byte }

const trieBits = 6

var seed = maphash.MakeSeed()

func hashOf(key string) uint64 { return maphash.String(seed, key) }

// slot returns the bit of hash in a node at depth, in bits, and the index of its child.
func (n *node[V]) slot(hash uint64, depth uint) (bit uint64, i int) {
	bit = 1 << (hash >> depth & (1<<trieBits - 1))
	return bit, bits.OnesCount64(n.has & (bit - 1))
}

// get returns the value of key, whose hash is hash, or nil.
func (t *trie[V]) get(hash uint64, key string) *V {
	n := t.root
	for depth := uint(0); n != nil; depth += trieBits {
		bit, i := n.slot(hash, depth)
		if n.has&bit == 0 {
			return nil
		}
		c := &n.children[i]
		for l := c.leaf; l != nil; l = l.next {
			if l.hash == hash && l.key == key {
				return &l.value
			}
		}
		n = c.node
	}
	return nil
}

// put makes value the one of key in t, for o.
func (t *trie[V]) put(o *owner, key string, value V) {
	added := false
	if t.root, added = t.root.put(o, 0, &leaf[V]{hash: hashOf(key), key: key, value: value}); added {
		t.size++
	}
}

func (n *node[V]) put(o *owner, depth uint, l *leaf[V]) (_ *node[V], added bool) {
	n = n.of(o)
	bit, i := n.slot(l.hash, depth)
	if n.has&bit == 0 {
		n.has |= bit
		n.children = slices.Insert(n.children, i, child[V]{leaf: l})
		return n, true
	}
	c := &n.children[i]
	switch {
	case c.node != nil:
		c.node, added = c.node.put(o, depth+trieBits, l)
	case c.leaf.hash == l.hash:
		l.next, added = c.leaf.without(l.key)
		added = !added
		c.leaf = l
	default: // both go one node deeper
		c.node, _ = c.node.put(o, depth+trieBits, c.leaf)
		c.node, added = c.node.put(o, depth+trieBits, l)
		c.leaf = nil
	}
	return n, added
}

// remove removes key from t, for o, and reports whether it was there.
func (t *trie[V]) remove(o *owner, key string) bool {
	hash := hashOf(key)
	if t.get(hash, key) == nil {
		return false
	}
	t.root = t.root.remove(o, 0, hash, key)
	t.size--
	return true
}

// remove returns n without key, which it has, or nil if that leaves nothing.
func (n *node[V]) remove(o *owner, depth uint, hash uint64, key string) *node[V] {
	n = n.of(o)
	bit, i := n.slot(hash, depth)
	c := &n.children[i]
	if c.node != nil {
		c.node = c.node.remove(o, depth+trieBits, hash, key)
	} else {
		c.leaf, _ = c.leaf.without(key)
	}
	if c.node == nil && c.leaf == nil {
		n.has &^= bit
		n.children = slices.Delete(n.children, i, i+1)
	}
	if n.has == 0 {
		return nil
	}
	return n
}

// of returns n for o to change: n itself if it is o's, else a copy.
func (n *node[V]) of(o *owner) *node[V] {
	switch {
	case n == nil:
		return &node[V]{owner: o}
	case n.owner == o:
		return n
	}
	return &node[V]{owner: o, has: n.has, children: slices.Clone(n.children)}
}

// without returns the leaves without the one of key, and whether there was one. All share
// a hash, so there is rarely a second.
func (l *leaf[V]) without(key string) (rest *leaf[V], found bool) {
	if l == nil {
		return nil, false
	}
	if l.key == key {
		return l.next, true
	}
	next, found := l.next.without(key)
	if !found {
		return l, false
	}
	return &leaf[V]{hash: l.hash, key: l.key, value: l.value, next: next}, true
}

// all calls yield with each key and its value, in no order, until it returns false.
func (t *trie[V]) all(yield func(key string, value *V) bool) bool { return t.root.all(yield) }

func (n *node[V]) all(yield func(key string, value *V) bool) bool {
	if n == nil {
		return true
	}
	for i := range n.children {
		c := &n.children[i]
		if !c.node.all(yield) {
			return false
		}
		for l := c.leaf; l != nil; l = l.next {
			if !yield(l.key, &l.value) {
				return false
			}
		}
	}
	return true
}
