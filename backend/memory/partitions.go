package memorybackend

import (
	"slices"

	"github.com/weir-go/weir/throttler/driver"
)

// Decisions about several partitions, whose counts may be under several locks. All of them
// are held, so that a decision is one atomic step.

// Joins implements driver.Joiner: a request may be about several partitions.
func (b *Backend) Joins(driver.Request) bool { return true }

// part is what a decision asks of one partition.
type part struct {
	driver.Part
	stripe *stripe
	long   [][]byte
	at     moment
	d      driver.Decision
}

// lockParts locks the stripes of r's partitions, in their order: no two decisions wait for
// each other.
func (b *Backend) lockParts(r *driver.Request) (parts []part, unlock func()) {
	var stripes []int
	for _, p := range r.Parts() {
		charges := p.Request.Charges()
		n := int(partitionHash(b.seed, &charges[0]) & uint64(len(b.stripes)-1))
		stripes = append(stripes, n)
		parts = append(parts, part{Part: p, stripe: &b.stripes[n], long: longNames(charges), at: moment{now: r.Now}})
	}
	slices.Sort(stripes)
	stripes = slices.Compact(stripes)
	for _, n := range stripes {
		b.stripes[n].mu.Lock()
	}
	return parts, func() {
		for _, n := range stripes {
			b.stripes[n].mu.Unlock()
		}
	}
}

func (b *Backend) peekParts(r driver.Request) (driver.Decision, error) {
	parts, unlock := b.lockParts(&r)
	defer unlock()
	return peekAll(&r, parts)
}

// peekAll returns whether all parts fit, without charging them, and keeps each one's answer.
func peekAll(r *driver.Request, parts []part) (whole driver.Decision, err error) {
	whole = driver.NewDecision(*r)
	whole.Allowed = true
	for i := range parts {
		p := &parts[i]
		if p.d, err = p.stripe.peekLocked(&p.Request, nil, p.long, &p.at); err != nil {
			return driver.Decision{}, err
		}
		p.CopyTo(&whole, &p.d)
		whole.Allowed = whole.Allowed && p.d.Allowed
	}
	copyCosts(&whole, parts)
	return whole, nil
}

// copyCosts makes whole, if it is allowed, say what its parts charge.
func copyCosts(whole *driver.Decision, parts []part) {
	for i := range parts {
		if whole.Allowed {
			parts[i].CopyCosts(whole, &parts[i].d)
		}
	}
}

func (b *Backend) takeParts(r driver.Request) (whole driver.Decision, pooled bool, err error) {
	parts, unlock := b.lockParts(&r)
	defer unlock()
	if whole, err = peekAll(&r, parts); err != nil {
		return whole, false, err
	}
	for i := range parts {
		p := &parts[i]
		if !whole.Allowed && p.d.Allowed {
			continue // only what refuses is taken, to be remembered
		}
		var isPooled bool
		if p.d, isPooled, err = p.stripe.takeLocked(&p.Request, nil, p.long, &p.at); err != nil {
			return whole, pooled, err
		}
		pooled = pooled || isPooled
		p.CopyTo(&whole, &p.d)
		if whole.Allowed && !p.d.Allowed { // an earlier part took the room of its count
			whole.Allowed = false
			whole.Request = r
			if err := settleAll(parts[:i], driver.Settlement{Now: r.Now}, &whole); err != nil {
				return whole, pooled, err
			}
		}
	}
	copyCosts(&whole, parts)
	return whole, pooled, nil
}

func (b *Backend) settleParts(st driver.Settlement) (driver.Decision, error) {
	r := st.Charged.Request
	r.Now = st.Now
	whole := driver.NewDecision(r)
	whole.Allowed = true
	parts, unlock := b.lockParts(&r)
	defer unlock()
	for i := range parts {
		p := &parts[i]
		p.d = driver.NewDecision(p.Request)
		p.d.Allowed = true
		p.CopyFrom(&st.Charged, &p.d)
	}
	err := settleAll(parts, st, &whole)
	return whole, err
}

// settleAll settles parts as st says of the whole decision, at cost 0 if it says nothing.
func settleAll(parts []part, st driver.Settlement, whole *driver.Decision) error {
	for i := range parts {
		p := &parts[i]
		costs := make([]int64, len(p.Request.Charges()))
		if st.Costs != nil {
			costs = p.Costs(st.Costs)
		}
		d, err := p.stripe.settleLocked(&driver.Settlement{Now: st.Now, Charged: p.d, Costs: costs, PauseUntil: st.PauseUntil, Renews: st.Renews}, nil, p.long, &p.at)
		if err != nil {
			return err
		}
		p.CopyTo(whole, &d)
		if whole.Allowed = whole.Allowed && d.Allowed; st.Renews {
			p.d = d
		}
	}
	if st.Renews && !whole.Allowed { // what one part has renewed is given back
		none := driver.NewDecision(whole.Request)
		return settleAll(parts, driver.Settlement{Now: st.Now, Costs: st.Costs}, &none)
	}
	return nil
}
