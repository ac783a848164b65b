package flagfile

import (
	"encoding/binary"
	"math/bits"
)

// murmur3 returns the 32-bit MurmurHash3 of text, with seed 0: the hash that flagd
// selects variants by.
func murmur3(text string) uint32 {
	const c1, c2 = 0xcc9e2d51, 0x1b873593
	mix := func(block uint32) uint32 { return bits.RotateLeft32(block*c1, 15) * c2 }

	var hash uint32
	data := []byte(text)
	for ; len(data) >= 4; data = data[4:] {
		hash ^= mix(binary.LittleEndian.Uint32(data))
		hash = bits.RotateLeft32(hash, 13)*5 + 0xe6546b64
	}
	if len(data) > 0 {
		var tail [4]byte
		copy(tail[:], data)
		hash ^= mix(binary.LittleEndian.Uint32(tail[:]))
	}

	hash ^= uint32(len(text))
	hash ^= hash >> 16
	hash *= 0x85ebca6b
	hash ^= hash >> 13
	hash *= 0xc2b2ae35
	hash ^= hash >> 16
	return hash
}
