package leased

import (
	"sync"

	"github.com/weir-go/weir/internal/names"
)

// stripe is a part of the table of leases.
type stripe struct {
	mu     sync.Mutex
	leases map[names.Name]*lease
	most   int
	all    list // the one that asked last first
	held   list // of those that hold units, in the same order
	lost   []*lease
	lax    int64 // ms
	local  int64 // decisions made without a call
}

func (s *stripe) init(most int, lax int64) {
	s.leases, s.most, s.lax = make(map[names.Name]*lease), most, lax
	s.all.of = func(l *lease) *links { return &l.inAll }
	s.held.of = func(l *lease) *links { return &l.inHeld }
}

// get returns the lease of that name, a new one if there was none. If there is no room,
// the one that has been silent for longest goes, and holds nothing any more: its units
// are given back by the next sweep.
func (s *stripe) get(n names.Name) *lease {
	if l := s.leases[n]; l != nil {
		return l
	}
	if len(s.leases) >= s.most {
		s.remove(s.all.last)
	}
	l := &lease{name: n}
	s.leases[n] = l
	return l
}

// remove takes l out of the table. What it holds is given back by the next sweep.
func (s *stripe) remove(l *lease) {
	delete(s.leases, l.name)
	s.all.remove(l)
	s.held.remove(l)
	if l.held > 0 {
		s.lost = append(s.lost, l)
	}
}

// touch notes that l was asked now.
func (s *stripe) touch(l *lease, now int64) {
	l.lastAsk = now
	if l.inAll.in && now >= l.movedAt && now-l.movedAt < s.lax {
		return // the lists are in order to within lax, and moving costs more than all else
	}
	l.movedAt = now
	s.all.moveToFront(l)
	if l.inHeld.in {
		s.held.moveToFront(l)
	}
}

// noteHolding keeps l in the list of those that hold units, or takes it out.
func (s *stripe) noteHolding(l *lease) {
	if l.held > 0 != l.inHeld.in {
		if l.held > 0 {
			s.held.moveToFront(l)
		} else {
			s.held.remove(l)
		}
	}
}

// list is a doubly linked list of leases.
type list struct {
	first, last *lease
	of          func(*lease) *links
}

type links struct {
	next, previous *lease
	in             bool
}

func (q *list) moveToFront(l *lease) {
	if q.first == l {
		return
	}
	q.remove(l)
	n := q.of(l)
	n.in, n.next = true, q.first
	if q.first != nil {
		q.of(q.first).previous = l
	} else {
		q.last = l
	}
	q.first = l
}

func (q *list) remove(l *lease) {
	n := q.of(l)
	if !n.in {
		return
	}
	if n.previous != nil {
		q.of(n.previous).next = n.next
	} else {
		q.first = n.next
	}
	if n.next != nil {
		q.of(n.next).previous = n.previous
	} else {
		q.last = n.previous
	}
	*n = links{}
}
