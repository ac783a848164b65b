package algorithm

import "slices"

// Size returns the length of the stored form of s, in bytes.
func (s *State) Size() int {
	size := 0
	if s.last.generation != 0 {
		size = resetBytes
	}
	for i := range s.records {
		r := &s.records[i]
		size += kindBytes + windowBytes + kinds[r.kind].bytes + len(r.log)*entryBytes
		if r.endsAt != 0 {
			size += instantBytes
		}
	}
	if s.hasLog() {
		size += ringsBytes
	}
	return size
}

// Coarsen halves each log of s with more than the given number of entries, by merging
// neighbours: the older counts for as long as the younger. Used and the reset time do not
// change. Charges leave the window later than they would have, never earlier. A refund of a
// charge that was merged may find no units to refund. Call it after a decision: the logs must
// not contain entries that no longer count.
func (s *State) Coarsen(entries int) {
	for i := range s.records {
		r := &s.records[i]
		if len(r.log) <= max(entries, 1) {
			continue
		}
		r.log = halved(r.log)
		r.count = 0
		for _, e := range r.log {
			r.count += e.cost
		}
	}
}

// halved returns log in half as many entries, in new memory.
func halved(log []entry) []entry {
	odd := len(log) % 2 // the oldest stays alone then
	short := append(make([]entry, 0, len(log)/2+odd), log[:odd]...)
	for pair := range slices.Chunk(log[odd:], 2) {
		short = append(short, entry{ms: pair[1].ms, cost: min(pair[0].cost+pair[1].cost, maxLogCost)})
	}
	return short
}
