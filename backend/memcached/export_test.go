package memcachedbackend

// SpillAt makes b spill counts from items whose counts take more than that many
// bytes: all but one, if it is 1.
func (b *Backend) SpillAt(bytes int) {
	for _, s := range b.servers {
		s.spillAt = bytes
	}
}
