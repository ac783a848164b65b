package memcachedbackend

import "github.com/weir-go/weir/throttler"

// SpillAt makes b spill counts from items with more than that many bytes of counts: all counts
// but one if bytes is 1.
func (b *Backend) SpillAt(bytes int) {
	for _, s := range b.servers {
		s.spillAt = bytes
	}
}

// Waiting returns how many decisions wait for the item of c.
func (b *Backend) Waiting(c throttler.Charge) int {
	key, s := b.place(c.Key)
	n, _ := s.waiting.Len(key)
	return n
}

// Exchanging reports whether an exchange about the item of c is on its way.
func (b *Backend) Exchanging(c throttler.Charge) bool {
	key, s := b.place(c.Key)
	n, served := s.waiting.Len(key)
	return served && n == 0
}
