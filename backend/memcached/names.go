package memcachedbackend

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"

	"github.com/weir-go/weir/throttler/quota"
)

// A partition's item is
//
//	weir:Xr5rGRGJS5oQyXcP
//
// where the 16 characters are the first 96 bits of a SHA-256, so that keys may have any bytes
// and any length, and are not shown. Memcached's own keys end at 250 bytes and at the first
// space. The key of a count's own item has a dot at the end, which no hash has: whatever a
// client's key is, the two never collide.
const (
	hashBytes = 12
	hashChars = 16
	ownMark   = "."
)

func (b *Backend) place(partition string) (string, *server) {
	return b.prefix + hashOf(partition), b.servers[b.ring.Choose(partition)]
}

// ownKey returns the key of the named count's own item. key is the key of the partition's item.
func ownKey(key, name string) string {
	prefix := key[:len(key)-hashChars]
	return prefix + hashOf(key[len(prefix):]+name) + ownMark
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:hashBytes])
}

// name identifies a count.
type name struct {
	inPartition string // in its partition's item
	ownKey      string // Memcached's, of the separate item; empty if it never has one
}

func namesOf(key string, charges []quota.Charge) []name {
	names := make([]name, len(charges))
	for i := range charges {
		names[i] = nameOf(key, &charges[i])
	}
	return names
}

// nameOf returns the name of c's count. key is the key of the partition's item. In that item,
// the name is the policy's name and, if c's key is not the partition, a NUL and a hash of the
// key. A policy's name has no NUL.
//
// Counts of the partition's key, one for each policy, stay in the partition's item,
// so that a client that is a partition by itself costs no second look-up.
func nameOf(key string, c *quota.Charge) name {
	n := c.Policy.Name
	if c.Key == c.Partition {
		return name{inPartition: n}
	}
	sum := sha256.Sum256([]byte(c.Key))
	n += "\x00" + string(sum[:hashBytes])
	return name{n, ownKey(key, n)}
}

func canHaveOwnItem(name []byte) bool { return bytes.IndexByte(name, 0) >= 0 }
