package memorybackend

import "slices"

const (
	sweepNext = 4  // entries swept for each new one: more than one, so that expired ones become fewer
	lookAt    = 16 // entries that a victim is chosen from
	lookMost  = 4  // further choices if one for each key is not enough
)

// admit finds room for the new counts. If there is too little, it makes all of them pooled,
// and reports true.
func (s *stripe) admit(now *moment) (pooled bool) {
	keys, bytes := 0, int64(0)
	for _, c := range s.counts {
		if c.isNew && !c.pooled {
			keys++
			bytes += c.bytes()
		}
	}
	s.victims = s.victims[:0]
	if keys == 0 || s.findRoom(keys, bytes, now) {
		return false
	}
	s.victims = s.victims[:0]
	for _, c := range s.counts {
		if c.isNew && !c.pooled {
			s.pool(c, now)
		}
	}
	return true
}

// bytes returns the memory that c, a new count, takes outside of the table.
func (c *count) bytes() int64 {
	limits := len(c.policy.Limits)
	size := 27 * limits // a sliding window's record; a bucket's is longer
	if c.stored != nil {
		size = c.stored.State.Size() + 13 // and the claim
	}
	if limits <= 2 && c.stored == nil || size <= maxPacked {
		return 0
	}
	return largeBytes(size)
}

// findRoom chooses entries to evict until there is room for that many new keys, with that many
// bytes outside of the table. It reports whether they suffice.
func (s *stripe) findRoom(keys int, bytes int64, now *moment) bool {
	s.looked = 0
	for times := keys + lookMost; !s.fits(keys, bytes); times-- {
		if times == 0 || s.looked >= s.entries.n {
			return false
		}
		if best, ok := s.leastUsed(now); ok {
			s.victims = append(s.victims, best)
			if e := s.entries.entry(best); e.flags&isLarge != 0 {
				bytes -= largeBytes(s.larges.find(e).longest)
			}
		}
	}
	return true
}

// fits reports whether that many more keys and bytes fit once the victims are removed.
func (s *stripe) fits(keys int, bytes int64) bool {
	n := s.entries.n - len(s.victims) + keys
	grown := int64(max(cellsFor(n)-len(s.entries.cells), 0)) * cellSize
	after := s.bytes() + int64(n-s.entries.n)*entrySize + grown + bytes
	return n-s.pooled <= s.maxKeys && after <= s.maxBytes/8*7 // the rest is for pooled counts and unfilled chunks
}

// leastUsed looks at some entries. It returns an expired one or, failing that, the one with
// the smallest used part of its quota, but no entry that is used up.
func (s *stripe) leastUsed(now *moment) (least uint32, ok bool) {
	leastUsed := int32(allUsed)
	for range min(lookAt, s.entries.n-s.looked) {
		place := s.placeToLookAt(s.hand + uint32(s.looked))
		s.looked++
		e := s.entries.entry(place)
		used := int32(e.used)
		if e.expired(now) {
			used = -1
		}
		if used < leastUsed && e.flags&isPooled == 0 && !s.inUse(place) {
			least, leastUsed, ok = place, used, true
		}
	}
	return least, ok
}

// placeToLookAt returns the place of the i-th look for room. Successive looks are spread over
// the table: adjacent entries came together, and may all have used much. In a small table the
// looks reach all places.
func (s *stripe) placeToLookAt(i uint32) uint32 {
	n := uint32(s.entries.n)
	if n <= 2*lookAt*lookMost {
		return i % n
	}
	const golden = 0x9e3779b9 // 2^32 by the golden ratio: successive places are far apart
	return uint32(uint64(i*golden) * uint64(n) >> 32)
}

// inUse reports whether the decision in progress is about that entry, or has chosen it.
func (s *stripe) inUse(place uint32) bool {
	return slices.Contains(s.victims, place) ||
		slices.ContainsFunc(s.counts, func(c *count) bool { return c.place == place })
}

// expired reports whether e no longer counts by the decision's clock.
func (e entry) expired(now *moment) bool {
	return e.endsAt <= now.now && (e.flags&isClaimed == 0 || e.until <= now.clock())
}

// dead reports whether e ended at least margin ago by the process' own clock.
func (e entry) dead(now *moment) bool { return e.until+margin <= now.clock() }

// make makes the room that admit found, if a count needs it, and sweeps a few entries. A sweep
// removes pooled counts that have expired, and other counts that have expired by the
// decision's clock, or that find would drop, but only some time after they ended by the
// process' own clock: a clock that steps forward and back loses no count.
func (s *stripe) make(now *moment) {
	if !slices.ContainsFunc(s.counts, func(c *count) bool { return c.isNew && !c.pooled }) {
		return
	}
	s.evict(now)
	for range min(sweepNext, s.entries.n) {
		if s.swept >= uint32(s.entries.n) {
			s.swept = 0 // not modulo n: while the table grows, that would move with its end
		}
		place := s.swept
		s.swept++
		e := s.entries.entry(place)
		dead := (e.endsAt <= now.now || now.now < e.openedAt) && e.dead(now)
		if (dead || e.flags&isPooled != 0 && e.expired(now)) && !s.inUse(place) {
			s.remove(place)
		}
		if s.entries.n == 0 {
			return
		}
	}
}

// evict removes the victims.
func (s *stripe) evict(now *moment) {
	for n := len(s.victims) - 1; n >= 0; n-- {
		victim := s.victims[n]
		s.victims = s.victims[:n]
		if !s.entries.entry(victim).expired(now) {
			s.evicted++
		}
		s.remove(victim)
	}
	s.hand += uint32(s.looked)
}

// trim brings the stripe back within its bounds after counts have grown. It evicts expired
// counts, then makes the logs of the step's counts coarser, and then evicts other counts.
func (s *stripe) trim(now *moment) {
	if s.fits(0, 0) {
		return
	}
	s.victims = s.victims[:0]
	s.findRoom(0, 0, now)
	s.victims = slices.DeleteFunc(s.victims, func(place uint32) bool { return !s.entries.entry(place).expired(now) })
	s.evict(now)
	for _, c := range s.counts {
		if c.large != nil && c.place != nowhere && !s.fits(0, 0) {
			s.larges.coarsen(c.large, coarsest)
		}
	}
	s.findRoom(0, 0, now)
	s.evict(now)
}

// coarsest is the length of the longest log that is not made coarser.
const coarsest = 16
