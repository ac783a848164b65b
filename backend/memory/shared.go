package memorybackend

// Counts that new keys share while there is no room for their own counts.
const (
	// sharedCounts is how many there are for each policy, or one for each lock if there are
	// more locks. More counts would allow more charges of newcomers in all; fewer would let
	// one newcomer use up the quota of more others.
	sharedCounts = 64

	// sharedMost is how many a stripe has before later policies share theirs with each other.
	sharedMost = 256

	// sharedLog is how many entries a sliding log of a shared count keeps. More are merged.
	sharedLog = 64
)

// noteShared is the driver.Mark.Note of a charge to a count that several keys share.
const noteShared = 1

// share makes c a count that new keys share. The keys of one decision never share a count: it
// is chosen by the place of the charge, and by the seeded hash of the key's own name.
func (s *stripe) share(c *count, at *moment) {
	number := byte(c.hash % s.shares)
	c.shared, c.arrived = true, false
	s.findShared(c, c.policy.Name, number, at)
	if c.place == nowhere && s.shared >= sharedMost {
		s.findShared(c, "", number, at)
	}
	c.isNew = c.place == nowhere
}

func (s *stripe) findShared(c *count, policy string, number byte, at *moment) {
	c.name = name{}
	c.hash = uint32(c.name.setShared(s.seed, policy, byte(c.index), number))
	s.find(c, at)
}
