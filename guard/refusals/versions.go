package refusals

import (
	"math/bits"
	"sync/atomic"
)

// version is a count's version, and its number before the backend was asked.
type version struct {
	word   *atomic.Uint64
	number uint64
}

// changed reports whether the count was settled or reset since.
func (s *version) changed() bool { return s.word.Load() != s.number }

// versions number the settlements and resets of counts that are made through a Backend. Counts
// with colliding hashes share a version, and then a change of either ends refusals of both.
type versions []atomic.Uint64

// newVersions returns enough versions that few counts share one.
func newVersions(maxKeys int) versions { return make(versions, max(2*maxKeys, 1024)) }

func (v versions) word(hash uint64) *atomic.Uint64 {
	place, _ := bits.Mul64(hash, uint64(len(v)))
	return &v[place]
}
