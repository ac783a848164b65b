package modes

import (
	"context"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// counted identifies the counts of each charge of a request.
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
		in.of[i] = member(results[first].Mark.Note >> driver.NoteShift & memberBits)
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

// A Note has, from driver.NoteShift on, the member and, of a charge inBoth, the synced counts'
// own bits. The bits below it are then the store's.
const (
	memberBits = 1<<2 - 1
	softShift  = driver.NoteShift + 2
)

// setMember notes in the mark of a charge where it was counted.
func setMember(mark *driver.Mark, m member) {
	mark.Note = mark.Note&(1<<driver.NoteShift-1) | uint8(m)<<driver.NoteShift
}

// half is the part of a request for one kind of counts, and the decision about it.
type half struct {
	driver.Part
	d driver.Decision
}

// half returns the part of r for the counts that has selects.
func (in *counted) half(r *driver.Request, has func(member) bool) *half {
	var places []int
	for i := range r.Charges() {
		if has(in.of[i]) {
			places = append(places, i)
		}
	}
	return &half{Part: r.Part(places)}
}

// whole returns h's decision as one about r, with results for h's charges only.
func (h *half) whole(r *driver.Request) driver.Decision {
	d := driver.NewDecision(*r)
	h.CopyTo(&d, &h.d)
	if d.Allowed = h.d.Allowed; d.Allowed {
		h.CopyCosts(&d, &h.d)
	}
	return d
}

// settlement returns the part of st for the counts of h. A charge that these counts don't
// contain yet has cost 0 so far.
func (charged *counted) settlement(st *driver.Settlement, h *half, has func(member) bool) driver.Settlement {
	r := h.Request
	r.Now = st.Charged.Request.Now
	part := driver.Settlement{Now: st.Now, Renews: st.Renews, Charged: driver.NewDecision(r), Costs: h.Costs(st.Costs)}
	part.Charged.Allowed, part.Charged.Degraded = true, st.Charged.Degraded
	h.CopyFrom(&st.Charged, &part.Charged)
	for k, i := range h.Places {
		if !has(charged.of[i]) {
			part.Costs[k] -= h.Request.Charges()[k].Cost
			part.Charged.SetCost(k, 0)
			clear(part.Charged.ResultsOf(k))
		} else if charged.of[i] == inBoth && has(inSoft) {
			for j := range part.Charged.ResultsOf(k) {
				part.Charged.ResultsOf(k)[j].Mark.Note >>= softShift
			}
		}
	}
	mark(&part.Charged, inStore) // as the backend returned it
	return part
}

// merge returns the decision about r from its halves. If the store decided without counts,
// because it doesn't answer, so does the whole, unless the synced counts refuse: then the
// limits in the store have no window.
func (in *counted) merge(r *driver.Request, soft, store *half) driver.Decision {
	if len(store.d.Charges()) == 0 {
		if soft.d.Allowed {
			d := driver.NewDecision(driver.NewRequest(r.Now))
			d.Allowed, d.Degraded = store.d.Allowed, store.d.Degraded
			return d
		}
		unread := driver.Unread(store.Request)
		unread.Degraded = store.d.Degraded
		store.d = unread
	}
	d, ofSoft := store.whole(r), soft.whole(r)
	d.Allowed = d.Allowed && ofSoft.Allowed
	for i, asked := range r.Charges() {
		cost, results := asked.Cost, d.ResultsOf(i)
		if d.Allowed {
			cost = min(d.Charges()[i].Cost, ofSoft.Charges()[i].Cost)
		}
		d.SetCost(i, cost)
		for k, result := range ofSoft.ResultsOf(i) {
			switch in.of[i] {
			case inBoth:
				results[k] = stricter(results[k], &result)
				setMember(&results[k].Mark, inBoth)
				results[k].Mark.Note |= result.Mark.Note << softShift
			case inSoft:
				results[k] = result
				setMember(&results[k].Mark, inSoft)
			case inStore:
				setMember(&results[k].Mark, inStore)
			}
		}
	}
	return d
}

// stricter merges of, the store's result, with soft, the synced counts' result for the same
// limit: each value is the stricter of the two. The mark is the store's: both mean the instant
// at which the charge of a bucket has drained, or at which its window ends.
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
// new counts as in the old, after an allowed take.
func (b *Backend) fill(ctx context.Context, r *driver.Request, in counted, soft, store *half) {
	table, ofSoft, ofStore := *b.table.byName.Load(), soft.whole(r), store.whole(r)
	for i, c := range r.Charges() {
		if in.of[i] != inBoth {
			continue
		}
		of := ofStore.ResultsOf(i)
		if table[c.Policy.Name].mode == Synced {
			b.soft.Raise(c, r.Now, of)
		} else if more := missing(c.Policy, ofSoft.ResultsOf(i), of); more > 0 {
			// A take, and not a settlement: if several processes do this at once,
			// the bucket is full, and not in debt.
			c.Cost, c.Mode = more, quota.Enforce
			_, _ = b.store.Take(ctx, driver.NewRequest(r.Now, c)) // the next take adds any units still missing
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
