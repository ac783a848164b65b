package modes

import (
	"context"
	"iter"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// counted says in which counts each charge of a request is.
type counted struct {
	of  [quota.MaxCharges]member
	all member // inBoth if they differ
}

// counted returns where the charges of r are counted now.
func (b *Backend) counted(r *driver.Request) (in counted) {
	table, charges := *b.table.byName.Load(), r.Charges()
	for i := range charges {
		if e, ok := table[charges[i].Policy.Name]; ok {
			in.of[i] = e.member(charges[i].Policy, r.Now)
		}
		in.note(i)
	}
	return in
}

// chargedIn returns where the charges of d, which was allowed, were counted.
func chargedIn(d *driver.Decision) (in counted) {
	results, first := d.Results(), 0
	for i, c := range d.Charges() {
		in.of[i] = member(results[first].Mark.Note >> driver.NoteShift)
		in.note(i)
		first += len(c.Policy.Limits)
	}
	return in
}

// note takes charge i, the one after those noted, into account in in.all.
func (in *counted) note(i int) {
	if i == 0 {
		in.all = in.of[0]
	} else if in.of[i] != in.all {
		in.all = inBoth
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

// place is the place of a charge in the request for the synced counts, and in the store's. One that
// is not there has the place of the next that is.
type place struct {
	member
	soft, store int
}

// places yields the charges of r, by their index, and where they are in the two requests
// that split returns.
func (in *counted) places(r *driver.Request) iter.Seq2[int, place] {
	return func(yield func(int, place) bool) {
		var at place
		for i := range r.Charges() {
			at.member = in.of[i]
			if !yield(i, at) {
				return
			}
			if at.hasSoft() {
				at.soft++
			}
			if at.hasStore() {
				at.store++
			}
		}
	}
}

// split returns the requests for the two kinds of counts.
func (in *counted) split(r *driver.Request) (soft, store driver.Request) {
	var ofSoft, ofStore []quota.Charge
	for i, c := range r.Charges() {
		if in.of[i].hasSoft() {
			ofSoft = append(ofSoft, c)
		}
		if in.of[i].hasStore() {
			ofStore = append(ofStore, c)
		}
	}
	return driver.NewRequest(r.Now, ofSoft...), driver.NewRequest(r.Now, ofStore...)
}

// settlement returns the part of st about the counts that has selects. Its charges are
// those that now, which is charged and what has to be charged now, has there. What was not
// charged there has cost nothing so far.
func (charged *counted) settlement(st *driver.Settlement, now counted, has func(member) bool) driver.Settlement {
	r := st.Charged.Request
	part := driver.Settlement{Now: st.Now, Renews: st.Renews}
	var charges []quota.Charge
	var results []driver.Result
	for i, c := range r.Charges() {
		if !has(now.of[i]) {
			continue
		}
		cost, of := st.Costs[i], st.Charged.ResultsOf(i)
		if !has(charged.of[i]) {
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
func (in *counted) merge(r *driver.Request, soft, store *driver.Decision) driver.Decision {
	if len(store.Charges()) == 0 {
		soft.Degraded = store.Degraded
		mark(soft, inSoft)
		return *soft
	}
	d := driver.NewDecision(*r)
	d.Degraded, d.Allowed = store.Degraded, soft.Allowed && store.Allowed
	for i, at := range in.places(r) {
		results, cost := d.ResultsOf(i), r.Charges()[i].Cost
		if at.hasStore() {
			copy(results, store.ResultsOf(at.store))
			cost = min(cost, store.Charges()[at.store].Cost)
		}
		if at.hasSoft() {
			for k, result := range soft.ResultsOf(at.soft) {
				if at.member == inBoth {
					result = stricter(results[k], &result)
				}
				results[k] = result
			}
			cost = min(cost, soft.Charges()[at.soft].Cost)
		}
		for k := range results {
			setMember(&results[k].Mark, at.member)
		}
		if d.Allowed {
			d.SetCost(i, cost)
		}
	}
	return d
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
func (b *Backend) fill(ctx context.Context, r *driver.Request, in counted, soft, store *driver.Decision) {
	table := *b.table.byName.Load()
	for i, at := range in.places(r) {
		if at.member != inBoth {
			continue
		}
		c, of := r.Charges()[i], store.ResultsOf(at.store)
		if table[c.Policy.Name].mode == Synced {
			b.soft.Raise(c, r.Now, of)
		} else if more := missing(c.Policy, soft.ResultsOf(at.soft), of); more > 0 {
			// A take, and not a settlement: if several processes do this at once,
			// the bucket is full, and not in debt.
			c.Cost, c.Mode = more, quota.Enforce
			_, _ = b.store.Take(ctx, driver.NewRequest(r.Now, c)) // the next take sees what is missing still
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
