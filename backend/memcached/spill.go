package memcachedbackend

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A partition's item is read and written whole, so counts that were not charged for a while
// are spilled from a long item, each to a separate one. The rule is
//
//	A count is in its partition's item or, if it is not there, in its own.
//	Decisions write the partition's item alone.
//
// A decision is one cas of that item, whatever its charges, and so all or nothing. It reads
// that item first and the counts' own items after it: if its cas succeeds, no count came or
// went in between. The counts that it charges are then in the partition's item, and the copies
// in their own items are void. A peek and a refusal have no cas: the counts that they report
// were true in one round trip, not at one instant.
//
// A spill writes the count's own item first, and then removes the count from the partition's
// item unless a charge in between gave it another write ID. It reads the own item first and
// the partition's after it. A process that writes a later state to the own item does so after
// it was read, so the cas of this spill fails, however late it arrives.
//
// When the partition's item is evicted, its epoch is lost, and the counts' own items are void:
// otherwise they would bring back old states. So an eviction of that item loses the
// partition's counts, and an eviction of a count's own item loses the count.

// spillAt is how many bytes the counts in a partition's item may take before they
// are spilled, down to half of it. A shorter item is read and written in less
// time; a longer one keeps more of the counts that are charged again soon.
const spillAt = 8 << 10

// spillers is how many items a spill writes at once, if there are connections.
const spillers = 16

// spill writes counts that were not charged lately to separate items. It returns a job that
// removes them from the partition's item, or nil if it has nothing to remove. The caller is
// using a connection.
func (s *server) spill(p *item) *job {
	names := p.leastRecent()
	if len(names) == 0 {
		return nil
	}
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = ownKey(p.key, name)
	}
	deadline := time.Now().Add(s.deadline)
	items, err := s.read(deadline, append(keys, p.key)) // the partition's item last, see above
	if err != nil {
		return nil
	}
	p, err = newItem(p.key, items[len(keys)].value, s.margin, s.spillAt)
	if err != nil || p.epoch == 0 {
		return nil
	}
	spilled := make([]*count, len(names))
	var next atomic.Int64
	write := func() {
		for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
			c := p.count(names[i])
			if c == nil {
				continue
			}
			switch written, err := s.writeOwn(deadline, keys[i], items[i], p, c); {
			case written:
				spilled[i] = c
			case err != nil:
				next.Store(int64(len(names))) // the server may hang: do not wait for each
			}
		}
	}
	var wg sync.WaitGroup
	for range min(len(names), spillers) - 1 {
		select {
		case s.connections <- struct{}{}:
			wg.Go(func() {
				write()
				<-s.connections
			})
		default:
		}
	}
	write()
	wg.Wait()
	spilled = slices.DeleteFunc(spilled, func(c *count) bool { return c == nil })
	if len(spilled) == 0 {
		return nil
	}
	return &job{
		caller: context.Background(),
		change: func(now *item) (bool, error) { return now.remove(spilled, p.epoch), nil },
	}
}

// writeOwn writes c, a count of p, to its own item, in place of old if that was found. It
// does so even if old has the same value: only then does a late cas of another spill fail.
// After an error the count stays where it is, and an applied write does no harm.
func (s *server) writeOwn(deadline time.Time, key string, old stored, p *item, c *count) (bool, error) {
	return s.client.swap(deadline, key, old, p.encodeOwn(c), expiration(c.expiry-p.now, p.now))
}

// leastRecent returns the names of the counts to spill from an item that was written:
// the least recently charged ones, but never the last.
func (p *item) leastRecent() []string {
	var names []string
	bytes := p.bytes
	for _, c := range p.inOrder() {
		if bytes <= p.spillAt/2 || bytes == c.bytes {
			break
		}
		if canHaveOwnItem(c.name) {
			names = append(names, string(c.name))
			bytes -= c.bytes
		}
	}
	return names
}

// remove removes the counts that were not charged since they were spilled. It
// reports whether it removed one.
func (p *item) remove(spilled []*count, epoch uint64) bool {
	if p.epoch != epoch {
		return false
	}
	removed := false
	for _, old := range spilled {
		i := slices.IndexFunc(p.counts, func(c *count) bool { return bytes.Equal(c.name, old.name) })
		if i < 0 {
			continue
		}
		if c := p.counts[i]; !c.apart && !c.changed && c.writeID == old.writeID {
			p.counts = slices.Delete(p.counts, i, i+1)
			p.bytes -= c.bytes
			p.until = max(p.until, c.expiry)
			removed = true
		}
	}
	return removed
}
