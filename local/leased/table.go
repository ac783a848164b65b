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
	holding map[*lease]struct{} // leases that may hold units
	lost    []driver.Settlement // for the next sweep
	swept   int                 // where the sweep continues
	local   int64               // decisions made without a call
}

// get returns the lease of that name, and adds one if necessary.
func (s *stripe) get(n keyed.Name) *lease {
	l := s.Get(n)
	if l == nil {
		s.MakeRoom(1, func(l *lease) float64 { return float64(l.lastAsk) }, s.forget)
		l = new(lease)
		s.Add(n, 1, l)
	}
	return l
}

// forget removes l from the table. The next sweep refunds its units.
func (s *stripe) forget(l *lease) {
	s.Remove(l)
	s.lose(l)
}

// lose takes the held units from l. The next sweep refunds them to windows that haven't
// ended.
func (s *stripe) lose(l *lease) {
	if l.held > 0 {
		s.lost = append(s.lost, l.drop())
	}
}

// expire forgets l's windows, and leaves its held units to the next sweep: a window has ended,
// or the limits have changed.
func (s *stripe) expire(l *lease) {
	s.lose(l)
	l.until, l.refused, l.d = 0, 0, driver.Decision{}
}
