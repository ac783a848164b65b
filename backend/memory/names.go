package memorybackend

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/weir-go/weir/throttler"
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
func appendName(b []byte, c *throttler.Charge) []byte {
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

// isLong reports whether c's name is hashed. Lengths take one byte in the names
// that are not.
func isLong(c *throttler.Charge) bool {
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
// their place; nil if there is none. It is apart from the shards so that no lock
// is held while a key of a megabyte is hashed.
func longNames(charges []throttler.Charge) [][]byte {
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
