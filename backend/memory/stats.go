package memorybackend

// Stats contains the sizes of a Backend, and counters since New.
type Stats struct {
	// Keys is how many (policy, key) pairs have their own count, including expired counts that
	// no new key has removed yet.
	Keys int `json:"keys" metric:"gauge"`

	// PooledCounts is how many counts new keys are counted in together; 0 if there was always
	// room.
	PooledCounts int `json:"pooled_counts" metric:"gauge"`

	// Bytes is the memory that counts take, in bytes. It is an upper estimate for counts that
	// are larger than an entry.
	Bytes int64 `json:"bytes" metric:"gauge"`

	// Evicted is how many counts were dropped before they had expired, to make room. They had
	// not refused a charge.
	Evicted int64 `json:"evicted"`

	// PooledTakes is how many takes were counted together with other new keys,
	// whether allowed or refused.
	PooledTakes int64 `json:"pooled_takes"`
}

// Stats returns statistics of b. It takes each lock in turn, so they need not be of one moment.
func (b *Backend) Stats() Stats {
	var total Stats
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		total.Keys += s.entries.n - s.pooled
		total.PooledCounts += s.pooled
		total.Bytes += s.bytes()
		total.Evicted += s.evicted
		total.PooledTakes += s.pooledTakes
		s.mu.Unlock()
	}
	return total
}
