package redisbackend

import (
	"crypto/sha256"
	"encoding/base64"

	"github.com/weir-go/weir/throttler/quota"
)

// A count's Redis key is
//
//	weir:{Xr5rGRGJS5oQyXcP}/core                   key "alice", policy core
//	weir:{Xr5rGRGJS5oQyXcP}bQ9vzW1kqLZrNn3f/user   another key of alice's partition
//
// The braces hold a hash of the partition, so that a cluster keeps a partition in
// one slot. A hash of the key follows if the key is not the partition.
// Hashes are the first 96 bits of SHA-256: whatever bytes a client sends, it can't find
// a second key for another's hash, and its bytes are not shown. Sixteen characters, and
// not more, keep the whole key within 32 bytes of memory.
const hashChars = 16

// keysOf returns the Redis keys of charges, which share a partition.
func (b *Backend) keysOf(charges []quota.Charge) []string {
	keys := make([]string, len(charges))
	var buf [96]byte
	for i := range charges {
		keys[i] = string(b.appendKey(buf[:0], &charges[i]))
	}
	return keys
}

// appendKey appends the Redis key of c.
func (b *Backend) appendKey(buf []byte, c *quota.Charge) []byte {
	buf = append(buf, b.prefix...)
	buf = append(buf, '{')
	buf = appendHash(buf, c.Partition)
	buf = append(buf, '}')
	if c.Key != c.Partition {
		buf = appendHash(buf, c.Key)
	}
	buf = append(buf, '/')
	return append(buf, c.Policy.Name...)
}

// partitionBytes returns the number of leading bytes that all keys of a partition share.
func (b *Backend) partitionBytes() int { return len(b.prefix) + 1 + hashChars }

func appendHash(b []byte, s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.AppendEncode(b, sum[:hashChars*6/8])
}
