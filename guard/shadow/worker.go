package shadow

import (
	"context"
	"errors"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// shown is one item of the candidate's queue: a request or a settlement, and the
// serving backend's decision; or a reset.
type shown struct {
	request    driver.Request
	decision   driver.Decision
	settlement *driver.Settlement
	resets     bool
}

// worker sends the candidate the decisions of some partitions.
type worker struct {
	b     *Backend
	queue chan shown
	steps steps

	// takes has the candidate's decisions by the serving backend's takes. Settlements
	// need them, because the candidate's windows may have opened at other times.
	takes  map[takeID]driver.Decision
	oldest []takeID // a ring that bounds takes
	next   int
}

func newWorker(b *Backend, size int) *worker {
	return &worker{
		b: b, queue: make(chan shown, size),
		steps: steps{until: make(map[keyed.Name]int64), bound: max(64*size, 1024)},
		takes: make(map[takeID]driver.Decision), oldest: make([]takeID, size),
	}
}

func (w *worker) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-w.queue:
			w.show(ctx, s)
		}
	}
}

func (w *worker) show(ctx context.Context, s shown) {
	ctx, cancel := context.WithTimeout(ctx, w.b.deadline)
	defer cancel()
	s.request.ServerTime = 0 // the deadline is the candidate's
	if s.settlement != nil {
		w.settle(ctx, &s)
		return
	}
	if s.resets {
		if err := w.b.candidate.Reset(ctx, s.request); err != nil {
			w.b.stats.Change(func(s *Stats) { s.Failed++ })
			w.missed(s.request.Charges(), &s)
		}
		return
	}
	serving := decision.FromDriver(s.decision)
	var p *handoff.Placement
	if !opens(serving) {
		p = inStep
	}
	d, err := w.b.candidate.TakeAt(ctx, s.request, p)
	switch elsewhere := (*handoff.ElsewhereError)(nil); {
	case errors.As(err, &elsewhere):
		w.b.stats.Change(func(s *Stats) { s.NotInStep++ })
		return
	case err != nil:
		w.b.stats.Change(func(s *Stats) { s.Failed++ })
		w.missed(s.request.Charges(), &s)
		return
	}
	candidate := decision.FromDriver(d)
	inStep, differs := w.steps.inStep(s.request.Charges(), &s.decision, &d), false
	w.b.stats.Change(func(s *Stats) { differs = s.compare(inStep, serving, candidate) })
	if differs && w.b.differ != nil {
		w.b.differ(serving, candidate)
	}
	if d.Allowed && s.decision.Allowed {
		w.remember(&s.decision, d)
	}
}

// inStep makes the candidate decide only about counts that it has, and create none.
var inStep = &handoff.Placement{Backend: handoff.IDOf("shadow")}

// opens reports whether the candidate may create counts for decision d: no fixed
// window in it was open before.
func opens(d decision.Decision) bool {
	for _, s := range d.Limits() {
		opensWhenCharged := s.Limit.Algorithm.ResetsAtOnce() && !s.Limit.Aligned && s.Limit.Calendar.IsZero()
		if opensWhenCharged && !s.ResetAt.Equal(d.At().Add(s.Limit.Window)) {
			return false
		}
	}
	return true
}

// takeID names a take that was allowed. nth distinguishes takes of one millisecond
// with the same charges; it makes no difference which of them is settled.
type takeID struct {
	count   keyed.Name // of the first charge
	arrival int64
	cost    int64
	mark    driver.Mark
	nth     int
}

func takeIDOf(d *driver.Decision) takeID {
	r, first := d.Request, &d.Charges()[0]
	return takeID{count: names.Name(first), arrival: r.Now, cost: first.Cost, mark: d.Results()[0].Mark}
}

// remember stores d, the candidate's decision about a take of the serving backend.
func (w *worker) remember(serving *driver.Decision, d driver.Decision) {
	id := takeIDOf(serving)
	for w.takes[id].Allowed {
		id.nth++
	}
	delete(w.takes, w.oldest[w.next])
	w.takes[id], w.oldest[w.next] = d, id
	w.next = (w.next + 1) % len(w.oldest)
}

// recall returns the decision that was stored for a take, and removes it.
func (w *worker) recall(serving *driver.Decision) (d driver.Decision, ok bool) {
	id := takeIDOf(serving)
	for {
		next := id
		next.nth++
		if _, ok := w.takes[next]; !ok {
			break
		}
		id = next
	}
	d, ok = w.takes[id]
	delete(w.takes, id)
	return d, ok
}

// missed records that the candidate did not process s, or may not have. A refusal
// changed nothing.
func (w *worker) missed(charges []quota.Charge, s *shown) {
	switch {
	case s.resets: // the candidate's old charges count for a window at most
		w.steps.missedReset(charges, s.request.Now)
	case s.decision.Allowed:
		w.steps.missed(charges, &s.decision)
	}
}

// settle settles the candidate's own take, if one is stored.
func (w *worker) settle(ctx context.Context, shown *shown) {
	s := shown.settlement
	d, ok := w.recall(&s.Charged)
	if !ok {
		w.b.stats.Change(func(s *Stats) { s.Unsettled++ })
		w.missed(s.Charged.Charges(), shown)
		return
	}
	after, err := w.b.candidate.Settle(ctx, driver.Settlement{Now: s.Now, Charged: d, Costs: s.Costs, PauseUntil: s.PauseUntil, Renews: s.Renews})
	switch {
	case err != nil:
		w.b.stats.Change(func(s *Stats) { s.Failed++ })
		w.missed(s.Charged.Charges(), shown)
	case s.Renews:
		serving := s.Charged.Renewed(&shown.decision)
		w.remember(&serving, d.Renewed(&after))
	}
}
