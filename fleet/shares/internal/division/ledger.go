package division

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// A ledger is the most that processes may hold, as far as is known: see the package
// comment. It is of processes and not of names, because one that has stopped may have
// passed on what it held.
type ledger struct {
	ids     []vectorID // in order
	entries []entry    // in order of holder
	lost    bool       // there was no room for all entries
}

// An entry is what one process may hold by the last round that it is known to have
// been in, and whatever it has taken in of that one.
type entry struct {
	holder holder
	last   divisionID // of that round; made is several if more than one is known
	most   []int64    // of the ledger's ids
}

const several = math.MaxUint64

// A holder is a process: a member's, with what it drew when it started.
type holder struct {
	member      int
	incarnation uint64
}

func (a holder) compare(b holder) int {
	return cmp.Or(cmp.Compare(a.member, b.member), cmp.Compare(a.incarnation, b.incarnation))
}

// maxEntries returns how many entries a ledger has at most, by a list of n members: one
// for each member that is absent, and some for processes that have stopped since.
func maxEntries(n int) int { return 2 * n }

// knows returns the ledger of a member that has taken d in, by a list of n members. seen
// are the members known to have taken it in.
func (d *division) knows(seen set, n int) *ledger {
	l := new(ledger)
	for _, v := range d.vectors {
		l.ids = append(l.ids, v.id)
	}
	complete := seen.covers(d.in)
	for place, member := range d.in.members() {
		e := entry{holder: holder{member, d.incarnations[place]}, last: d.id}
		for _, v := range d.vectors {
			most := v.shares[place]
			if !complete {
				most = max(most, v.most[place])
			}
			e.most = append(e.most, most)
		}
		l.entries = append(l.entries, e)
	}
	if complete && len(d.incarnations) == n {
		return l // all other processes had stopped when it was made
	}
	return merge(n, l, d.absent)
}

// merge returns what is in a or in b, by a list of n members.
func merge(n int, a, b *ledger) *ledger {
	if len(b.entries) == 0 && !b.lost {
		return a
	}
	l := &ledger{lost: a.lost || b.lost, ids: slices.Concat(a.ids, b.ids)}
	slices.SortFunc(l.ids, vectorID.compare)
	l.ids = slices.Compact(l.ids)
	all := make(map[holder]entry)
	for _, from := range []*ledger{a, b} {
		for i := range from.entries {
			e := &from.entries[i]
			most := make([]int64, len(l.ids))
			for k, id := range l.ids {
				most[k] = from.of(e, id)
			}
			last := e.last
			switch old, ok := all[e.holder]; {
			case ok && e.last.roundID.less(old.last.roundID):
				continue
			case ok && e.last == old.last && last.made != several: // the one may know that it is complete
				for k := range most {
					most[k] = min(most[k], old.most[k])
				}
			case ok && e.last.roundID == old.last.roundID: // it takes in one of them at most
				last.made = several
				for k := range most {
					most[k] = max(most[k], old.most[k])
				}
			}
			all[e.holder] = entry{e.holder, last, most}
		}
	}
	l.entries = slices.SortedFunc(maps.Values(all), func(a, b entry) int { return a.holder.compare(b.holder) })
	return l.bounded(n)
}

// bounded returns l, or what is left of it if it is too large for messages.
func (l *ledger) bounded(n int) *ledger {
	if l.lost || len(l.entries) > maxEntries(n) || len(l.ids) > maxVectors {
		return &ledger{lost: true}
	}
	return l
}

// of returns the most that e's process may hold of id: of a key that is not in the
// ledger, of its quota.
func (l *ledger) of(e *entry, id vectorID) int64 {
	if i, ok := slices.BinarySearchFunc(l.ids, id, vectorID.compare); ok {
		return e.most[i]
	}
	if id.key != 0 {
		return l.of(e, vectorID{quota: id.quota})
	}
	return 0 // no member of its last round knew the quota
}

// sum returns the most that all processes in the ledger may hold of id.
func (l *ledger) sum(id vectorID) (units int64) {
	for i := range l.entries {
		units = min(units+l.of(&l.entries[i], id), maxTotal)
	}
	return units
}

// without returns l without some entries.
func (l *ledger) without(out func(*entry) bool) *ledger {
	left := &ledger{ids: l.ids, lost: l.lost}
	for i := range l.entries {
		if !out(&l.entries[i]) {
			left.entries = append(left.entries, l.entries[i])
		}
	}
	if len(left.entries) == 0 {
		left.ids = nil
	}
	return left
}

// large reports whether a process may hold more of a key than of its quota.
func (l *ledger) large(id vectorID) bool {
	return slices.ContainsFunc(l.entries, func(e entry) bool { return l.of(&e, id) > l.of(&e, vectorID{quota: id.quota}) })
}

// only returns l without the keys that need not be in it, because they are not in d
// either: of these, the most of the quota is enough.
func (l *ledger) only(d *division) *ledger {
	left := &ledger{lost: l.lost}
	for _, id := range l.ids {
		if id.key == 0 || d.find(id) != nil || l.large(id) {
			left.ids = append(left.ids, id)
		}
	}
	for i := range l.entries {
		e := entry{holder: l.entries[i].holder, last: l.entries[i].last}
		for _, id := range left.ids {
			e.most = append(e.most, l.of(&l.entries[i], id))
		}
		left.entries = append(left.entries, e)
	}
	return left
}
