package memorybackend

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"

	"github.com/weir-go/weir/quota"
)

// name names a count by its policy, partition and key with their lengths, so that no two
// triples share a name:
//
//	length of the policy, policy
//	0, key                                      if the partition is the key
//	1, length of the partition, partition, key  otherwise
//	2, place of the charge, number              of a count that new keys share
//
// One that is longer than maxName is 255 and its SHA-256 instead. No policy is that long,
// so no other name begins with 255. Zeros follow, and the last byte is the name's length.
type name [maxName + 1]byte

const maxName = 48

const (
	tagKey = iota
	tagPartition
	tagShared

	tagHashed = 255
)

// nameOf returns the name of c's count.
func nameOf(c *quota.Charge) name {
	var room [128]byte
	b := append(room[:0], byte(len(c.Policy.Name)))
	b = append(b, c.Policy.Name...)
	if c.Key == c.Partition { // the common case, half as long
		b = append(b, tagKey)
	} else {
		b = append(b, tagPartition)
		b = binary.AppendUvarint(b, uint64(len(c.Partition)))
		b = append(b, c.Partition...)
	}
	return pack(append(b, c.Key...))
}

// pack returns the name that b is, or is too long for.
func pack(b []byte) (n name) {
	if len(b) > maxName {
		sum := sha256.Sum256(b)
		b = append([]byte{tagHashed}, sum[:]...)
	}
	n[maxName] = byte(copy(n[:], b))
	return n
}

// appendNames appends the names of the counts of charges. They are made before the lock
// is taken: a key of a megabyte takes a while to hash.
func appendNames(names []name, charges []quota.Charge) []name {
	for i := range charges {
		names = append(names, nameOf(&charges[i]))
	}
	return names
}

// hash returns the hash of n. The seed is the process's own, so that clients cannot choose
// keys that meet.
func (n *name) hash(seed maphash.Seed) uint32 { return uint32(maphash.Bytes(seed, n[:])) }
