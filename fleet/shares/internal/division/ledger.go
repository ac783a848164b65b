package division

import "slices"

// A ledger contains the known processes, with the most that each may hold by the last round
// that it is known to have been in, whether or not it took that division in. See the package
// comment. Its entries are of processes and not of names, because the units of a process
// that has stopped may have passed to others.
type ledger struct {
	known map[process][]entry
	lost  bool // there was no room for all of them
}

// An entry is a row of a division about one process.
type entry struct {
	*division
	*row
	complete bool // the division is
}

// maxOthers returns how many other processes a division has room for: one for each member
// that is absent, and some for processes that have stopped since.
func maxOthers(list *List) int { return 2 * len(list.Members) }

// newLedger returns the ledger of the members that report, by their list.
func newLedger(reports []*message, list *List) *ledger {
	l := &ledger{known: make(map[process][]entry)}
	divisions, complete := make(map[roundID]*division), make(map[roundID]bool)
	for _, m := range reports {
		if m.Division != nil {
			divisions[m.Taken] = m.Division
			complete[m.Taken] = complete[m.Taken] || m.Complete
		}
	}
	for id, d := range divisions {
		for i := range d.Members {
			l.add(id, entry{d, &d.Members[i], complete[id]})
		}
		if complete[id] && len(d.Members) == len(list.Members) {
			continue // all other processes had stopped when it was made
		}
		l.lost = l.lost || d.Lost
		for i := range d.Others {
			l.add(d.Others[i].Last, entry{d, &d.Others[i], false})
		}
	}
	for _, m := range reports {
		delete(l.known, m.From)
	}
	if len(l.known) > maxOthers(list) {
		l.lost = true
	}
	if l.lost {
		clear(l.known)
	}
	return l
}

// last returns the round of e.
func (e *entry) last() roundID {
	if e.Shares != nil {
		return e.ID
	}
	return e.Last
}

// add adds an entry, unless there is one of a later round.
func (l *ledger) add(last roundID, e entry) {
	old := l.known[e.process]
	switch {
	case len(old) == 0 || old[0].last().less(last):
		l.known[e.process] = []entry{e}
	case old[0].last() == last:
		l.known[e.process] = append(old, e)
	}
}

// most returns the most that a process may hold of id. Each entry is a bound, and the least
// counts: one may know that the division is complete.
func (l *ledger) most(p process, id vectorID) int64 {
	least := int64(maxTotal)
	for _, e := range l.known[p] {
		i, most := e.index(id), int64(0) // if no member of its round knew the quota
		if i >= 0 {
			most = e.Most[i]
			if e.complete {
				most = e.Shares[i]
			} else if e.Shares != nil {
				most = max(most, e.Shares[i])
			}
		}
		least = min(least, most)
	}
	return least
}

// sum returns the most that all processes together may hold of id.
func (l *ledger) sum(id vectorID) (units int64) {
	for p := range l.known {
		units = min(units+l.most(p, id), maxTotal)
	}
	return units
}

// large returns the keys of a quota for which a process may hold more units than for the quota.
func (l *ledger) large(quota uint64) (keys []uint64) {
	for p, entries := range l.known {
		usual := l.most(p, vectorID{Quota: quota})
		for _, e := range entries {
			for i := e.index(vectorID{Quota: quota}) + 1; i < len(e.Vectors) && e.Vectors[i].Quota == quota; i++ {
				if v := e.Vectors[i]; v.Key != 0 && l.most(p, v.vectorID) > usual {
					keys = append(keys, v.Key)
				}
			}
		}
	}
	return keys
}

// rows returns the ledger as the Others of a division with those vectors.
func (l *ledger) rows(vectors []vector) (rows []row) {
	for p, entries := range l.known {
		r := row{process: p, Last: entries[0].last()}
		for _, v := range vectors {
			r.Most = append(r.Most, l.most(p, v.vectorID))
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b row) int { return a.compare(b.process) })
	return rows
}
