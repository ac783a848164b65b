package redisbackend

// Line says how many flights to the primary of the first shard are on their way,
// and how many decisions wait for one.
func (b *Backend) Line() (flights, waiting int) {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.flights), l.waiting.len
}

// SetRoom sets how many decisions may wait.
func (b *Backend) SetRoom(n int) {
	l := b.shards[0].line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room = n
}

const (
	MaxFlights  = maxFlights
	MaxWithLate = maxWithLate
	Late        = late
)
