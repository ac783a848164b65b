package memorybackend

// Pooled counts: new keys are counted in these together while there is no room for their own
// counts.
const (
	// pooledCounts is how many there are for each policy, or one for each lock if there are
	// more locks. More counts would allow more charges of newcomers in all; fewer would let
	// one newcomer use up the quota of more others.
	pooledCounts = 64

	// pooledMost is how many a stripe has before later policies are counted in the same ones.
	pooledMost = 256

	// pooledLog is how many entries a sliding log of a pooled count keeps. More are merged.
	pooledLog = 64
)

// notePooled is the driver.Mark.Note of a charge to a pooled count.
const notePooled = 1

// pool makes c a pooled count. No two keys of one decision are counted in the same one: it is
// chosen by the place of the charge among those of its policy, so that a settlement about a part
// of a decision finds it again, and by the seeded hash of the key's own name.
func (s *stripe) pool(c *count, now *moment) {
	number := byte(c.hash % s.perPolicy)
	c.pooled, c.arrived = true, false
	s.findPooled(c, c.policy.Name, number, now)
	if c.place == nowhere && s.pooled >= pooledMost {
		s.findPooled(c, "", number, now)
	}
	c.isNew = c.place == nowhere
}

func (s *stripe) findPooled(c *count, policy string, number byte, now *moment) {
	c.name = name{}
	c.hash = uint32(c.name.setPooled(s.seed, policy, s.placeOf(c), number))
	s.find(c, now)
}

func (s *stripe) placeOf(c *count) (place byte) {
	for _, before := range s.counts {
		if before == c {
			break
		}
		if before.policy.Name == c.policy.Name {
			place++
		}
	}
	return place
}
