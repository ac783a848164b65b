package keyed

import (
	"hash/maphash"
	"math/bits"

	"github.com/weir-go/weir/throttler/quota"
)

// Name names a count by two hashes. They are seeded, so that no client can choose two keys
// that collide, and long enough that keys don't collide by chance.
type Name [2]uint64

// Hasher makes names. The names of two Hashers have nothing in common.
type Hasher [2]maphash.Seed

// NewHasher returns a Hasher with new seeds.
func NewHasher() Hasher { return Hasher{maphash.MakeSeed(), maphash.MakeSeed()} }

// Name returns the name of c's count.
func (h *Hasher) Name(c *quota.Charge) Name {
	n := h.OfKey(c.Policy.Name, c.Key)
	if c.Partition != c.Key {
		for i, seed := range h {
			n[i] = Mix(n[i], maphash.String(seed, c.Partition))
		}
	}
	return n
}

// OfKey returns the name of the count of key under policy, in the key's own partition.
func (h *Hasher) OfKey(policy, key string) (n Name) {
	p := maphash.String(h[0], policy) // policies are few, and not the clients' choice
	for i, seed := range h {
		n[i] = Mix(maphash.String(seed, key), p)
	}
	return n
}

// Half returns the first half of the name of c's count. It is for tables that compare keys, and
// so allow names to collide.
func (h *Hasher) Half(c *quota.Charge) uint64 {
	n := Mix(maphash.String(h[0], c.Key), maphash.String(h[0], c.Policy.Name))
	if c.Partition != c.Key {
		n = Mix(n, maphash.String(h[0], c.Partition))
	}
	return n
}

// OfPartition returns the name of a partition.
func (h *Hasher) OfPartition(partition string) Name {
	return Name{maphash.String(h[0], partition), maphash.String(h[1], partition)}
}

// Numbered returns the name of a count of policy that has two numbers instead of a key.
func (h *Hasher) Numbered(policy string, a, b uint64) Name {
	return h.OfPartition(policy).And(Name{a, a}).And(Name{b, b})
}

// And returns a name for the pair of n and o, in that order.
func (n Name) And(o Name) Name { return Name{Mix(n[0], o[0]), Mix(n[1], o[1])} }

// Partition returns the first half of the name of a partition. It selects one stripe for all
// counts of a partition.
func (h *Hasher) Partition(partition string) uint64 { return maphash.String(h[0], partition) }

// Mix returns a hash of a and b, in that order.
func Mix(a, b uint64) uint64 { return (bits.RotateLeft64(a, 29) ^ b) * 0x9e3779b97f4a7c15 }
