package driver

import (
	"time"

	"github.com/weir-go/weir/throttler/quota"
)

// Request is one decision to make: see [NewRequest]. It is passed by value, and
// needs no further memory for one charge.
//
// A throttler sends costs of 1 and more. A backend that wraps another may send 0:
// that asks for nothing, is allowed unless a limit is in debt, and opens no window.
type Request struct {
	single [1]quota.Charge // the charge, if list is nil
	list   *[]quota.Charge // a pointer, because most requests have one charge, and are copied often

	Now int64 // ms since the epoch

	// ServerTime is how long a server may be silent before it counts as down. It begins when
	// the server is asked, and each one has all of it; a backend that waits for no server is
	// never late. If it is 0, the context and the backend's options bound the wait.
	ServerTime time.Duration
}

// NewRequest returns the request for a decision about charges at now, in ms since the epoch.
// Each charge has a Partition, the same one unless the backend is a [Joiner], and no two are
// for one count. NewRequest keeps the slice if it has several charges. A backend that decides
// without counts answers about no charges.
func NewRequest(now int64, charges ...quota.Charge) Request {
	if len(charges) == 1 {
		return Request{Now: now, single: [1]quota.Charge{charges[0]}}
	}
	list := charges // not a parameter: that would move to the heap for one charge, too
	return Request{Now: now, list: &list}
}

// Replace returns r about other charges: see NewRequest.
func (r *Request) Replace(charges ...quota.Charge) Request {
	other := NewRequest(r.Now, charges...)
	other.ServerTime = r.ServerTime
	return other
}

// Begin makes r, a zero Request, the request about c, and returns its copy of c. The caller
// may still change the copy, and sets Now.
func (r *Request) Begin(c *quota.Charge) *quota.Charge {
	// Word by word, and Now last both in memory and in time: a processor that copies two words
	// at once waits for words that were just written one by one.
	charge := &r.single[0]
	charge.Policy, charge.Key, charge.Cost, charge.Partition, charge.Mode = c.Policy, c.Key, c.Cost, c.Partition, c.Mode
	return charge
}

// Charges returns the charges. The caller must not change them.
func (r *Request) Charges() []quota.Charge {
	switch {
	case r.list != nil:
		return *r.list
	case r.single[0].Policy != nil:
		return r.single[:]
	}
	return nil
}

// Settlement corrects the costs of an allowed decision. A decision that was never
// taken, about charges of cost 0 as [NewDecision] returns it, can be settled upwards:
// that charges the costs at Now, room or no room.
type Settlement struct {
	Now     int64    // ms since the epoch
	Charged Decision // as the same backend returned it
	Costs   []int64  // real costs, one for each of Charged.Charges

	ServerTime time.Duration // as a Request's

	// Once makes it a settlement that is made only if the count of the last charge has
	// nothing, in one atomic step. Otherwise nothing changes, and the Decision, about all
	// counts as they are, is not Allowed. See MakeOnce.
	Once bool

	// PauseUntil is before when nothing fits these counts. The latest of several pauses counts.
	// In ms since the epoch; 0 if there is no pause.
	PauseUntil int64

	// Renews makes it a settlement that only holds the units of an InFlight for one more
	// lease. Costs are the costs charged; a charge of cost 0 has no unit. A unit that has
	// lapsed is taken again if there is room. Otherwise no unit is held any more, and the
	// decision is not Allowed. The marks of an InFlight change. A settlement that does not
	// renew releases these units.
	Renews bool
}

// Creates reports whether s makes a count for charge i if there isn't one.
func (s *Settlement) Creates(i int) bool {
	c := &s.Charged.Charges()[i]
	if s.Renews {
		return c.Cost > 0 && c.Policy.Holds()
	}
	return s.Costs[i] > c.Cost && !c.Policy.HoldsOnly() || s.PauseUntil > s.Now
}
