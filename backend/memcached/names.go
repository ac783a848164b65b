package memcachedbackend

import (
	"crypto/sha256"
	"encoding/base64"

	"github.com/weir-go/weir/throttler"
)

// A partition's item is
//
//	weir:Xr5rGRGJS5oQyXcP
//
// where the 16 characters are the first 96 bits of a SHA-256, so that keys may
// have any bytes and any length, and none of them is shown. Memcached's own
// keys end at 250 bytes and at the first space.
const hashBytes = 12

func (b *Backend) place(partition string) (string, *server) {
	sum := sha256.Sum256([]byte(partition))
	key := base64.RawURLEncoding.AppendEncode([]byte(b.prefix), sum[:hashBytes])
	return string(key), b.servers[b.ring.Choose(partition)]
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
