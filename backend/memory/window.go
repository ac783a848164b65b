package memorybackend

import "github.com/weir-go/weir/throttler/driver"

// takeWindow makes d, a zero Decision, the one about r, if r is about one key that has a
// window: nearly every take of most programs. It does what take does, without what only
// other takes need. If it returns false, it has charged nothing.
func (s *stripe) takeWindow(r *driver.Request, names []name, d *driver.Decision) bool {
	charges := r.Charges()
	if len(charges) != 1 || len(charges[0].Policy.Limits) != 1 || charges[0].Cost < 1 {
		return false
	}
	limit, hash := &charges[0].Policy.Limits[0], names[0].hash(s.seed)
	d.Request = *r
	s.mu.Lock()
	defer s.mu.Unlock()
	place := s.entries.find(&names[0], hash)
	if place == nowhere {
		return false
	}
	e := s.entries.at(place)
	w := e.window()
	if e.flags != isWindow || r.Now < e.openedAt || r.Now >= e.endsAt || !w.IsOf(limit) {
		return false
	}
	retryAt := w.Take(limit.Quota, charges[0].Cost)
	switch {
	case retryAt == 0:
		e.setUsed(w.Used)
		e.used = partOf(w.Used, limit.Quota)
	case retryAt != driver.NeverFits:
		e.used = allUsed
	}
	d.SetWindow(w.Used, w.ResetAt, retryAt)
	return true
}
