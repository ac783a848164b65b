package memorybackend

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"math/bits"

	"github.com/weir-go/weir/quota"
)

// A count's name is its policy, partition and key with their lengths, so that no
// two triples share a name:
//
//	length of the policy, policy
//	0, key                                      if the partition is the key
//	1, length of the partition, partition, key  otherwise
//	2, place of the charge, number              of a count that new keys share
//
// One that is longer than maxName is 255 and its SHA-256 instead. No policy is
// that long, so no other name begins with 255.
const (
	tagKey = iota
	tagPartition
	tagShared

	tagHashed = 255
)

// appendName appends the name of c's count, which may be too long.
func appendName(b []byte, c *quota.Charge) []byte {
	b = binary.AppendUvarint(b, uint64(len(c.Policy.Name)))
	b = append(b, c.Policy.Name...)
	if c.Key == c.Partition { // the common case, half as long
		b = append(b, tagKey)
	} else {
		b = append(b, tagPartition)
		b = binary.AppendUvarint(b, uint64(len(c.Partition)))
		b = append(b, c.Partition...)
	}
	return append(b, c.Key...)
}

// nameHash returns the hash of the name of c's count. The seed is the process's own,
// so that clients cannot choose keys that meet.
func nameHash(seed maphash.Seed, c *quota.Charge, partition uint64) uint32 {
	h := partition
	if c.Key != c.Partition {
		h = bits.RotateLeft64(h, 29) ^ maphash.String(seed, c.Key)
	}
	return hashUnder(c.Policy.Name, h)
}

// hashUnder returns the hash of a name under policy; h is the hash of the rest.
func hashUnder(policy string, h uint64) uint32 {
	// Policies are few, and not the clients' choice: some of their names will do.
	some := uint64(len(policy))<<24 | uint64(policy[0])<<16 | uint64(policy[len(policy)/2])<<8 | uint64(policy[len(policy)-1])
	return uint32(((h ^ some) * 0x9e3779b97f4a7c15) >> 32)
}

// partitionHash returns the hash of c's partition, which chooses the stripe.
func partitionHash(seed maphash.Seed, c *quota.Charge) uint64 {
	return maphash.String(seed, c.Partition)
}

// isLong reports whether c's name is hashed. Lengths take one byte in the names
// that are not.
func isLong(c *quota.Charge) bool {
	length := 1 + len(c.Policy.Name) + 1 + len(c.Key)
	if c.Key != c.Partition {
		length += 1 + len(c.Partition)
	}
	return length > maxName
}

func hashed(name []byte) []byte {
	sum := sha256.Sum256(name)
	return append([]byte{tagHashed}, sum[:]...)
}

// longNames returns the hashed names of the charges whose names are too long, by
// their place; nil if there is none. It is apart from the stripes so that no lock
// is held while a key of a megabyte is hashed.
func longNames(charges []quota.Charge) [][]byte {
	var names [][]byte
	for i := range charges {
		if isLong(&charges[i]) {
			if names == nil {
				names = make([][]byte, len(charges))
			}
			names[i] = hashed(appendName(nil, &charges[i]))
		}
	}
	return names
}
