package memcachedbackend

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/weir-go/weir/throttler"
)

// A partition's item is
//
//	weir:Xr5rGRGJS5oQyXcP
//
// where the 16 characters are the first 96 bits of a SHA-256, so that keys may
// have any bytes and any length, and none of them is shown. Memcached's own
// keys end at 250 bytes and at the first space. The item of one of its counts has
// a dot at the end, which no hash has: whatever a client's key is, the two never
// meet.
const (
	hashBytes = 12
	hashChars = 16
	ownMark   = "."
)

func (b *Backend) place(partition string) (string, *server) {
	return b.prefix + hashOf(partition), b.servers[b.ring.Choose(partition)]
}

// ownKey returns the key of the item of a count of the partition whose item's
// key is that.
func ownKey(key, name string) string {
	prefix := key[:len(key)-hashChars]
	return prefix + hashOf(key[len(prefix):]+name) + ownMark
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:hashBytes])
}

func namesOf(key string, charges []throttler.Charge) []name {
	names := make([]name, len(charges))
	for i := range charges {
		names[i].inPartition = nameOf(&charges[i])
		if canHaveOwnItem(names[i].inPartition) {
			names[i].ownKey = ownKey(key, names[i].inPartition)
		}
	}
	return names
}

// nameOf names the count of c within its partition's item: the policy's name
// and, if c's key is not the partition, a NUL and a hash of the key. A policy's
// name has no NUL.
func nameOf(c *throttler.Charge) string {
	if c.Key == c.Partition {
		return c.Policy.Name
	}
	sum := sha256.Sum256([]byte(c.Key))
	return c.Policy.Name + "\x00" + string(sum[:hashBytes])
}

// canHaveOwnItem reports whether the count of that name may be in an item of its
// own. Those of the partition's key, one for each policy, never are, so that a
// client that is a partition by itself costs no second look-up.
func canHaveOwnItem(name string) bool { return strings.IndexByte(name, 0) >= 0 }
