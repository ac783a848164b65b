package driver

import (
	"slices"
	"time"

	"github.com/weir-go/weir/throttler/quota"
)

// onceName is the policy of the counts that record whether a settlement was made. Their keys
// are ids, each of one decision.
const onceName = "weir:settled"

// MakeOnce returns s as a settlement that is made once, whichever process makes it: it also
// charges the count of id, which lives for keep. [Decision.WithoutOnce] removes that charge
// from the decision.
func (s *Settlement) MakeOnce(id string, keep time.Duration) Settlement {
	charges := s.Charged.Charges()
	// A quota of 2 is never used up, so a store that is full may forget the count.
	p := &quota.Policy{Name: onceName, Limits: []quota.Limit{{Quota: 2, Window: keep}}}
	extended := append(slices.Clone(charges), quota.Charge{Policy: p, Key: id, Partition: charges[0].Partition})
	once := Settlement{Now: s.Now, ServerTime: s.ServerTime, Once: true, Costs: append(slices.Clone(s.Costs), 1)}
	once.Charged = s.Charged.copyTo(NewRequest(s.Charged.Request.Now, extended...))
	return once
}

// WithoutOnce returns d, a decision about a settlement that MakeOnce made, without its last
// charge.
func (d *Decision) WithoutOnce() Decision {
	charges := d.Charges()
	return d.copyTo(NewRequest(d.Request.Now, charges[:len(charges)-1:len(charges)-1]...))
}

// Receiptless is a Backend that keeps some counts in this process. Another process can't
// settle charges to them, and a settlement that MakeOnce made is an error.
type Receiptless interface {
	Backend

	// HasReceipt returns nil if another process can settle d, which is allowed. Otherwise
	// its error wraps quota.ErrInvalid and says why not.
	HasReceipt(d *Decision) error
}

// HasReceipt calls the method of the first Receiptless among b and the backends behind it,
// which it finds by methods Unwrap() Backend. It returns nil if no backend is Receiptless.
func HasReceipt(b Backend, d *Decision) error {
	if r, ok := As[Receiptless](b); ok {
		return r.HasReceipt(d)
	}
	return nil
}
