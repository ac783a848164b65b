package leased

import (
	"sync"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
)

// stripe is a part of the table of leases.
type stripe struct {
	mu sync.Mutex
	keyed.Stripe[*lease]
	holding map[*lease]struct{} // those that may hold units
	lost    []driver.Settlement // that the next sweep makes
	swept   int                 // where the sweep goes on
	local   int64               // decisions made without a call
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
	s.lose(l)
}

// lose takes from l what it holds. The windows that have not ended get their units back with
// the next sweep.
func (s *stripe) lose(l *lease) {
	if l.held > 0 {
		s.lost = append(s.lost, l.drop())
	}
}

// expire forgets what the other backend said of l's windows: one has ended, or the limits
// have changed.
func (s *stripe) expire(l *lease) {
	s.lose(l)
	l.until, l.tooMuch, l.d = 0, 0, driver.Decision{}
}
