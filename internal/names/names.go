// Package names names counts by hashes, so that a count's name takes the same memory
// whatever the length of its key.
package names

import (
	"hash/maphash"
	"math/bits"

	"github.com/weir-go/weir/quota"
)

// Name names a count, by two hashes of it. They are seeded, so that no client can choose
// two keys that meet, and so long that none meet by chance.
type Name [2]uint64

// Hasher makes names. The names of two Hashers have nothing in common.
type Hasher [2]maphash.Seed

// NewHasher returns a Hasher with new seeds.
func NewHasher() Hasher { return Hasher{maphash.MakeSeed(), maphash.MakeSeed()} }

// Of returns the name of c's count.
func (h *Hasher) Of(c *quota.Charge) Name {
	n := h.OfKey(c.Policy.Name, c.Key)
	if c.Partition != c.Key {
		for i, seed := range h {
			n[i] = mix(n[i], maphash.String(seed, c.Partition))
		}
	}
	return n
}

// OfKey returns the name of the count of key under policy, whose partition is the key.
func (h *Hasher) OfKey(policy, key string) (n Name) {
	p := maphash.String(h[0], policy) // policies are few, and not the clients' choice
	for i, seed := range h {
		n[i] = mix(maphash.String(seed, key), p)
	}
	return n
}

// Numbered returns the name of a count of policy that has no key, but two numbers.
func (h *Hasher) Numbered(policy string, a, b uint64) Name {
	return Name{maphash.String(h[0], policy), maphash.String(h[1], policy)}.And(Name{a, a}).And(Name{b, b})
}

// And returns the name of what n and o name together, in that order.
func (n Name) And(o Name) Name { return Name{mix(n[0], o[0]), mix(n[1], o[1])} }

// Partition returns a hash of a partition.
func (h *Hasher) Partition(partition string) uint64 { return maphash.String(h[0], partition) }

func mix(a, b uint64) uint64 { return (bits.RotateLeft64(a, 29) ^ b) * 0x9e3779b97f4a7c15 }
