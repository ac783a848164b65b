package modes

import (
	"context"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// places says in which counts each charge of a request is.
type places struct {
	of  [quota.MaxCharges]member
	all member // inBoth if they differ
}

// place returns where the charges of r are counted now.
func (b *Backend) place(r *driver.Request) (p places) {
	table, charges := *b.table.byName.Load(), r.Charges()
	for i := range charges {
		if e, ok := table[charges[i].Policy.Name]; ok {
			p.of[i] = e.member(charges[i].Policy, r.Now)
		}
		p.note(i)
	}
	return p
}

// chargedIn returns where the charges of d, which was allowed, were counted.
func chargedIn(d *driver.Decision) (p places) {
	results, first := d.Results(), 0
	for i, c := range d.Charges() {
		p.of[i] = member(results[first].Mark.Note >> driver.NoteShift)
		p.note(i)
		first += len(c.Policy.Limits)
	}
	return p
}

// note takes charge i, the one after those noted, into account in p.all.
func (p *places) note(i int) {
	if i == 0 {
		p.all = p.of[0]
	} else if p.of[i] != p.all {
		p.all = inBoth
	}
}

// mark notes in d where its charges were counted.
func mark(d *driver.Decision, m member) {
	results := d.Results()
	for i := range results {
		setMember(&results[i].Mark, m)
	}
}

// setMember notes in the mark of a charge where that was counted.
func setMember(mark *driver.Mark, m member) {
	mark.Note = mark.Note&(1<<driver.NoteShift-1) | uint8(m)<<driver.NoteShift
}

// split returns the requests for the two kinds of counts.
func (p *places) split(r *driver.Request) (soft, store driver.Request) {
	var ofSoft, ofStore []quota.Charge
	for i, c := range r.Charges() {
		if p.of[i].hasSoft() {
			ofSoft = append(ofSoft, c)
		}
		if p.of[i].hasStore() {
			ofStore = append(ofStore, c)
		}
	}
	return driver.NewRequest(r.Now, ofSoft...), driver.NewRequest(r.Now, ofStore...)
}

// settlement returns the part of st about the counts that in selects. Its charges are
// those that p, which is charged and what has to be charged now, has there. What was not
// charged there has cost nothing so far.
func (charged *places) settlement(st *driver.Settlement, p places, in func(member) bool) driver.Settlement {
	r := st.Charged.Request
	part := driver.Settlement{Now: st.Now, Renews: st.Renews}
	var charges []quota.Charge
	var results []driver.Result
	for i, c := range r.Charges() {
		if !in(p.of[i]) {
			continue
		}
		cost, of := st.Costs[i], st.Charged.ResultsOf(i)
		if !in(charged.of[i]) {
			c.Cost, cost = 0, cost-c.Cost
			of = make([]driver.Result, len(of))
		}
		charges, results, part.Costs = append(charges, c), append(results, of...), append(part.Costs, cost)
	}
	part.Charged = driver.NewDecision(driver.NewRequest(r.Now, charges...))
	part.Charged.Allowed, part.Charged.Degraded = true, st.Charged.Degraded
	copy(part.Charged.Results(), results)
	mark(&part.Charged, inStore) // as the backend returned it
	return part
}

// merge returns the decision about r from its two parts. If the store decided without
// counts, because it does not answer, the decision is about the synced charges alone.
func (p *places) merge(r *driver.Request, soft, store *driver.Decision) driver.Decision {
	withStore := len(store.Charges()) > 0
	d := driver.NewDecision(soft.Request)
	if withStore {
		d = driver.NewDecision(*r)
	}
	d.Degraded = store.Degraded
	d.Allowed = soft.Allowed && (store.Allowed || !withStore)
	iSoft, iStore := 0, 0
	for i := range r.Charges() {
		m, at := p.of[i], i
		if !withStore {
			if !m.hasSoft() {
				continue
			}
			m, at = inSoft, iSoft
		}
		results := d.ResultsOf(at)
		if m.hasStore() {
			copy(results, store.ResultsOf(iStore))
			iStore++
		}
		if m.hasSoft() {
			for k, result := range soft.ResultsOf(iSoft) {
				if m == inBoth {
					result = stricter(results[k], &result)
				}
				results[k] = result
			}
			iSoft++
		}
		for k := range results {
			setMember(&results[k].Mark, m)
		}
	}
	if d.Allowed && withStore {
		p.copyCosts(r, &d, soft, store)
	}
	return d
}

// copyCosts makes d, which is allowed, say what its two parts charge.
func (p *places) copyCosts(r *driver.Request, d, soft, store *driver.Decision) {
	iSoft, iStore := 0, 0
	for i, c := range r.Charges() {
		m := p.of[i]
		if m.hasSoft() {
			c.Cost = min(c.Cost, soft.Charges()[iSoft].Cost)
			iSoft++
		}
		if m.hasStore() {
			c.Cost = min(c.Cost, store.Charges()[iStore].Cost)
			iStore++
		}
		d.SetCost(i, c.Cost)
	}
}

// shared returns the places, among the synced charges and those of the store, of the
// charges of r in mode AtMost that are in both counts.
func (p *places) shared(r *driver.Request) (pairs [][2]int) {
	iSoft, iStore := 0, 0
	for i, c := range r.Charges() {
		m := p.of[i]
		if m == inBoth && c.Mode == quota.AtMost {
			pairs = append(pairs, [2]int{iSoft, iStore})
		}
		if m.hasSoft() {
			iSoft++
		}
		if m.hasStore() {
			iStore++
		}
	}
	return pairs
}

// lower gives back what soft was charged more than store for the charges shared, for which
// the store may have had less room.
func (b *Backend) lower(ctx context.Context, shared [][2]int, soft, store *driver.Decision) error {
	lower, costs := *soft, make([]int64, len(soft.Charges()))
	for i, c := range soft.Charges() {
		costs[i] = c.Cost
	}
	for _, at := range shared {
		if len(store.Charges()) > 0 { // else it decided without counts
			costs[at[0]] = store.Charges()[at[1]].Cost
			lower.SetCost(at[0], costs[at[0]])
		}
	}
	after, err := b.soft.Settle(context.WithoutCancel(ctx), driver.Settlement{Now: soft.Request.Now, Charged: *soft, Costs: costs})
	if err != nil {
		return err // cannot be: its policies were known a moment ago
	}
	for i, r := range after.Results() {
		r.Mark = soft.Results()[i].Mark
		lower.Results()[i] = r
	}
	*soft = lower
	return nil
}

// stricter returns what of, the store's result, says with what the synced counts say of
// the same limit: the one that leaves less. The mark is the store's: of a bucket, both
// mean the instant at which the charge has drained, and of a window, synced counts need none.
func stricter(of driver.Result, soft *driver.Result) driver.Result {
	of.Used = max(of.Used, soft.Used)
	of.ResetAt = max(of.ResetAt, soft.ResetAt)
	of.NextAt = max(of.NextAt, soft.NextAt)
	if of.RetryAt != driver.NeverFits && soft.RetryAt != 0 {
		of.RetryAt = max(of.RetryAt, soft.RetryAt)
		if soft.RetryAt == driver.NeverFits {
			of.RetryAt = driver.NeverFits
		}
	}
	return of
}

// fill makes the token buckets of policies that are changing their mode as full in the
// counts to come as in the old ones, after an allowed take.
func (b *Backend) fill(ctx context.Context, r *driver.Request, p places, soft, store *driver.Decision) {
	if len(store.Charges()) == 0 || store.Degraded {
		return
	}
	table := *b.table.byName.Load()
	iSoft, iStore := 0, 0
	for i, c := range r.Charges() {
		m := p.of[i]
		if m == inBoth {
			of := store.ResultsOf(iStore)
			if table[c.Policy.Name].mode == Synced {
				b.soft.Raise(c, r.Now, of)
			} else if more := missing(c.Policy, soft.ResultsOf(iSoft), of); more > 0 {
				// A take, and not a settlement: if several processes do this at once,
				// the bucket is full, and not in debt.
				c.Cost, c.Mode = more, quota.Enforce
				_, _ = b.store.Take(ctx, driver.NewRequest(r.Now, c)) // the next take sees what is missing still
			}
		}
		if m.hasSoft() {
			iSoft++
		}
		if m.hasStore() {
			iStore++
		}
	}
}

// missing returns the units by which the buckets of p are fuller in the synced counts
// than in the store.
func missing(p *quota.Policy, soft, store []driver.Result) int64 {
	most := int64(0)
	for k := range p.Limits {
		l := &p.Limits[k]
		if !l.Algorithm.Drains() {
			continue
		}
		if more := min(soft[k].Used, l.Capacity()) - store[k].Used; more > 1 { // both are rounded up
			most = max(most, more)
		}
	}
	return most
}
