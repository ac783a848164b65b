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
	refunds []driver.Settlement // which the next sweep makes
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
	s.refund(l)
}

// refund takes the held units from l. The next sweep refunds them to windows that haven't ended.
func (s *stripe) refund(l *lease) {
	if l.held > 0 {
		s.refunds = append(s.refunds, l.refund())
	}
}

// expire forgets l's windows, and leaves its held units to the next sweep: a window has ended,
// or the limits have changed.
func (s *stripe) expire(l *lease) {
	s.refund(l)
	l.firstEnd, l.refusedCost, l.granted = 0, 0, driver.Decision{}
}
