package fallback

// Stats has counts since New, and gauges.
type Stats struct {
	Open   int64 `json:"open"`   // decisions that allowed everything
	Local  int64 `json:"local"`  // decisions by this process's share
	Closed int64 `json:"closed"` // decisions that failed

	HandedOver int64 `json:"handed_over"` // units that were charged to the backend after an outage
	Lost       int64 `json:"lost"`        // units that were not: the table was full, or their charge has an unknown outcome
	Pooled     int64 `json:"pooled"`      // charges of new keys that found no room, and were counted together: if any, raise MaxKeys

	Outages int   `json:"outages" metric:"gauge"` // shards that do not answer
	Keys    int   `json:"keys" metric:"gauge"`    // (policy, key) pairs that are remembered
	Held    int64 `json:"held" metric:"gauge"`    // of them, pairs with units to hand over
}

// Stats returns the counts so far.
func (b *Backend) Stats() Stats {
	s := b.stats.Now()
	s.Held = b.held.Load()
	b.mu.Lock()
	s.Outages = len(b.outages)
	b.mu.Unlock()
	for i := range b.table.stripes {
		stripe := &b.table.stripes[i]
		stripe.mu.Lock()
		s.Keys += len(stripe.Values())
		stripe.mu.Unlock()
	}
	return s
}
