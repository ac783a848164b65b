package leased

import (
	"sync"

	"github.com/weir-go/weir/internal/keyed"
)

// stripe is a part of the table of leases.
type stripe struct {
	mu sync.Mutex
	keyed.Stripe[*lease]
	held  []*lease // those that hold units, in no order
	lost  []*lease // those whose units the next sweep gives back
	swept int      // where the sweep goes on
	local int64    // decisions made without a call
}

// get returns the lease of that name, a new one if there was none.
func (s *stripe) get(n keyed.Name) *lease {
	l := s.Get(n)
	if l == nil {
		s.MakeRoom(1, func(l *lease) float64 { return float64(l.lastAsk) }, s.forget)
		l = new(lease)
		s.Add(n, 1, l)
	}
	return l
}

// forget takes l out of the table. What it holds is given back by the next sweep.
func (s *stripe) forget(l *lease) {
	s.Remove(l)
	if l.held > 0 {
		s.lost = append(s.lost, l)
	}
	s.release(l)
}

// noteHolding notes whether l holds units.
func (s *stripe) noteHolding(l *lease) {
	switch {
	case l.held <= 0:
		s.release(l)
	case l.holder == 0:
		s.held = append(s.held, l)
		l.holder = len(s.held)
	}
}

// release takes l out of those that hold units.
func (s *stripe) release(l *lease) {
	if l.holder == 0 {
		return
	}
	last := len(s.held) - 1
	moved := s.held[last]
	s.held[l.holder-1], moved.holder = moved, l.holder
	clear(s.held[last:])
	s.held, l.holder = s.held[:last], 0
}
