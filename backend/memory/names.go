package memorybackend

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"math/bits"

	"github.com/weir-go/weir/throttler/quota"
)

// name is the name of a count: its own length, then policy, partition and key with their
// lengths, so that no two triples share a name, then zeros.
//
//	length of the policy, policy
//	0, key                                      if the partition is the key
//	1, length of the partition, partition, key  otherwise
//	2, place of the charge, number              for a pooled count
//
// In a name that is too long, 255 and a SHA-256 of the rest follow its length: no policy in a
// name is that long, so no other name has a 255 there.
type name [maxName]byte

const (
	tagKey = iota
	tagPartition
	tagPooled

	tagHashed = 255
)

// set makes n, a zero name, the name of c's count, and returns its hash. Its last bits, of
// partition and key alone, choose the stripe: all policies' counts of a key are under one
// lock. The seed is the process's own, so that clients can't make keys collide.
func (n *name) set(seed maphash.Seed, c *quota.Charge) (hash uint64) {
	policy, key := c.Policy.Name, c.Key
	// Policies are few, and clients do not choose them: some bytes of their names will do.
	mix := uint64(len(policy))<<56 | uint64(policy[0])<<48 | uint64(policy[len(policy)/2])<<40 | uint64(policy[len(policy)-1])<<32
	hash = maphash.String(seed, key)
	keyAt := 2 + len(policy) + 1
	switch single := key == c.Partition; {
	case single && keyAt+len(key) <= maxName: // nearly all
		n[0], n[1] = byte(keyAt+len(key)), byte(len(policy))
		copy(n[2:], policy)
		n[keyAt-1] = tagKey
		copy(n[keyAt:], key)
	case single:
		n.setAll(policy, tagKey, key)
	default:
		hash = bits.RotateLeft64(hash, 29) ^ maphash.String(seed, c.Partition)
		var length [binary.MaxVarintLen64]byte
		n.setAll(policy, tagPartition, string(binary.AppendUvarint(length[:0], uint64(len(c.Partition)))), c.Partition, key)
	}
	return (hash ^ mix) * 0x9e3779b97f4a7c15
}

// setPooled makes n, a zero name, the name of a pooled count, and returns its hash.
func (n *name) setPooled(seed maphash.Seed, policy string, place, number byte) (hash uint64) {
	n.setAll(policy, tagPooled, string([]byte{place, number}))
	return maphash.Bytes(seed, n[:])
}

// setAll makes n the name of that policy, tag and parts.
func (n *name) setAll(policy string, tag byte, parts ...string) {
	var buf [maxName]byte
	text := append(binary.AppendUvarint(buf[:0], uint64(len(policy))), policy...)
	text = append(text, tag)
	for _, part := range parts {
		text = append(text, part...)
	}
	if len(text) >= maxName {
		sum := sha256.Sum256(text)
		text = append([]byte{tagHashed}, sum[:]...)
	}
	n[0] = byte(1 + copy(n[1:], text))
}
