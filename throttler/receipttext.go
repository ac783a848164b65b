package throttler

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/receiptkey"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// receiptText is a decision in a text. It contains keys of clients, which the settling process
// needs to find the counts, so it is encrypted.
type receiptText struct {
	At      int64        `json:"t"` // ms since the epoch
	Charges []chargeText `json:"c"`
	Links   *links       `json:"l,omitempty"`
}

type chargeText struct {
	Policy    string        `json:"p"`
	Unit      quota.Unit    `json:"u,omitempty"`
	Hidden    bool          `json:"h,omitempty"`
	Limits    []quota.Limit `json:"l"` // as their texts
	Key       []byte        `json:"k"` // bytes: JSON would change a string that is not UTF-8
	Partition []byte        `json:"q"`
	Cost      int64         `json:"n"`
	Marks     []driver.Mark `json:"m"` // one for each limit
}

// Receipt returns a text of d that processes with the same counts and ReceiptKey can Open. It
// fails with ErrInvalid if d charged no shared count.
func (t *Throttler) Receipt(d Decision) (string, error) {
	charges := d.Charges()
	switch {
	case !d.Allowed || d.Degraded || len(charges) == 0 || d.receipt == nil:
		return "", invalid.Errorf("throttler: only a decision that Take or Open of this process has returned, allowed and charged to the shared counts, has a receipt")
	case len(charges) == quota.MaxCharges:
		return "", invalid.Errorf("throttler: a decision about %d charges has no receipt; one about %d has", len(charges), quota.MaxCharges-1)
	}
	if !slices.ContainsFunc(charges, func(c Charge) bool { return !c.Policy.HoldsOnly() }) {
		return "", invalid.Errorf("throttler: a decision that only holds units in flight has no receipt: nothing of it is left to settle")
	}
	if err := t.hasReceipt(d.receipt, d.Driver()); err != nil {
		return "", err
	}
	text := receiptText{At: d.Driver().Request.Now}
	for i, c := range charges {
		charge := chargeText{Policy: c.Policy.Name, Unit: c.Policy.Unit, Hidden: c.Policy.Hidden, Key: []byte(c.Key), Partition: []byte(c.Partition), Limits: c.Policy.Limits, Cost: c.Cost}
		for k, result := range d.Driver().ResultsOf(i) {
			if c.Policy.Limits[k].Algorithm.Holds() {
				// A renewal changes the mark, and the old one may be another unit's. So units
				// in flight end with the process that took them.
				result.Mark = driver.Mark{}
			}
			charge.Marks = append(charge.Marks, result.Mark)
		}
		text.Charges = append(text.Charges, charge)
	}
	text.Links = d.receipt.links
	id, ok := d.receipt.name()
	if !ok {
		return "", invalid.Errorf("throttler: the decision took nothing, or is refunded or settled, and has no receipt")
	}
	plain, err := json.Marshal(text)
	if err != nil {
		return "", invalid.Errorf("throttler: the decision has no receipt: %v", err)
	}
	return t.receiptKey.Seal(id, plain)
}

// hasReceipt returns an error if another process cannot settle d, which r charged.
func (t *Throttler) hasReceipt(r *receiptState, d *driver.Decision) error {
	r.mu.Lock()
	parts := r.extras().parts
	r.mu.Unlock()
	for _, take := range parts {
		if err := driver.HasReceipt(t.backends[take.part.backend], d); err != nil {
			return err
		}
	}
	return driver.HasReceipt(t.backends[r.backend], d)
}

// Open returns the charges of a receipt, which are settled once; then it is ErrSettled. A changed
// text is ErrInvalid, another key's ErrReceiptKey.
func (t *Throttler) Open(text string) (Decision, error) {
	id, plain, err := t.receiptKey.Unseal(text)
	if err != nil {
		return Decision{}, fmt.Errorf("throttler: %w", err)
	}
	var opened receiptText
	if err := json.Unmarshal(plain, &opened); err != nil {
		return Decision{}, invalid.Errorf("throttler: a receipt is of another version of weir: %v", err)
	}
	return opened.decision(id)
}

// decision returns the decision in r, with a receipt that has that id.
func (r *receiptText) decision(id string) (Decision, error) {
	var charges []Charge
	for _, c := range r.Charges {
		p := &Policy{Name: c.Policy, Unit: c.Unit, Hidden: c.Hidden, Limits: c.Limits}
		if err := p.Validate(); err != nil {
			return Decision{}, err
		}
		if len(c.Marks) != len(p.Limits) {
			return Decision{}, invalid.Errorf("throttler: a receipt of policy %q has %d marks for %d limits", c.Policy, len(c.Marks), len(p.Limits))
		}
		charges = append(charges, Charge{Policy: p, Key: string(c.Key), Partition: string(c.Partition), Cost: c.Cost})
	}
	d := driver.NewDecision(driver.NewRequest(r.At, charges...))
	d.Allowed = true
	for i, c := range r.Charges {
		results := d.ResultsOf(i)
		for k := range results {
			results[k].Mark = c.Marks[k]
		}
	}
	opened := Decision{decision.FromDriver(d), &receiptState{extra: &receiptExtra{id: id}, links: r.Links, opened: true, released: true}}
	opened.Added = r.Links.added(len(charges))
	return opened, nil
}

// name returns r's id, which the first call makes, and which every later settlement uses. ok
// is false if r is settled.
func (r *receiptState) name() (id string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.withExtras()
	if m.id == "" {
		random := make([]byte, receiptkey.IDBytes)
		_, _ = rand.Read(random) // it never fails
		m.id = string(random)
	}
	return m.id, !r.done
}
