package shadow

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// shown is what the candidate sees: a request or a settlement, and what became
// of it.
type shown struct {
	request    throttler.Request
	decision   throttler.Decision
	settlement *throttler.Settlement
}

// worker shows the candidate the decisions of some partitions.
type worker struct {
	b     *Backend
	queue chan shown
	steps steps

	// taken are the candidate's decisions, by what the serving backend took, for
	// their settlement: windows may have opened at other instants.
	taken  map[takeID]throttler.Decision
	oldest []takeID // a ring, as long as taken may be
	next   int
}

func newWorker(b *Backend, size int) *worker {
	return &worker{
		b: b, queue: make(chan shown, size),
		steps: steps{until: make(map[countID]time.Time), bound: max(64*size, 1024)},
		taken: make(map[takeID]throttler.Decision), oldest: make([]takeID, size),
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
	if s.settlement != nil {
		w.settle(ctx, &s)
		return
	}
	var p *handoff.Placement
	if !opens(s.decision) {
		p = inStep
	}
	began := time.Now()
	d, err := w.b.candidate.TakeAt(ctx, s.request, p)
	switch elsewhere := (*handoff.ElsewhereError)(nil); {
	case errors.As(err, &elsewhere):
		w.b.counts.notInStep.Add(1)
		return
	case err != nil:
		w.b.counts.failed.Add(1)
		w.missed(s.request.Charges(), &s)
		return
	}
	w.b.counts.candidate.note(time.Since(began))
	switch {
	case !w.steps.inStep(s.request.Charges(), &s.decision, &d):
		w.b.counts.notInStep.Add(1)
	case w.b.counts.compare(s.decision, d) && w.b.differ != nil:
		w.b.differ(s.decision, d)
	}
	if d.Allowed && s.decision.Allowed {
		w.remember(&s.decision, d)
	}
}

// inStep has the candidate decide about a count that it has, and begin none.
var inStep = &handoff.Placement{Backend: handoff.IDOf("shadow")}

// opens reports whether a count may begin with decision d: there is no fixed
// window in it that was open before.
func opens(d throttler.Decision) bool {
	for _, s := range d.Limits() {
		opensWhenCharged := s.Limit.Algorithm == throttler.FixedWindow && !s.Limit.Aligned
		if opensWhenCharged && !s.ResetAt.Equal(d.At().Add(s.Limit.Window)) {
			return false
		}
	}
	return true
}

// takeID names a take that was allowed. Takes of one millisecond that charge the
// same are told apart by nth: which of them is settled is the same to both
// backends.
type takeID struct {
	count countID // of the first charge
	at    int64
	cost  int64
	mark  throttler.Mark
	nth   int
}

func takeIDOf(d *throttler.Decision) takeID {
	r, first := d.Request(), &d.Charges()[0]
	return takeID{count: idOf(first), at: r.Now, cost: first.Cost, mark: d.Results()[0].Mark}
}

// remember remembers d, the candidate's decision about a take of the serving
// backend.
func (w *worker) remember(serving *throttler.Decision, d throttler.Decision) {
	id := takeIDOf(serving)
	for w.taken[id].Allowed {
		id.nth++
	}
	delete(w.taken, w.oldest[w.next])
	w.taken[id], w.oldest[w.next] = d, id
	w.next = (w.next + 1) % len(w.oldest)
}

// recall returns what was remembered of a take, once.
func (w *worker) recall(serving *throttler.Decision) (d throttler.Decision, ok bool) {
	id := takeIDOf(serving)
	for {
		next := id
		next.nth++
		if _, more := w.taken[next]; !more {
			break
		}
		id = next
	}
	d, ok = w.taken[id]
	delete(w.taken, id)
	return d, ok
}

// missed notes that the candidate did not see s, or may not have. A refusal
// changed nothing.
func (w *worker) missed(charges []throttler.Charge, s *shown) {
	if s.decision.Allowed {
		w.steps.missed(charges, &s.decision)
	}
}

// settle settles what the candidate took, if it took it, and that is known.
func (w *worker) settle(ctx context.Context, shown *shown) {
	s := shown.settlement
	d, ok := w.recall(&s.Charged)
	if !ok {
		w.b.counts.unsettled.Add(1)
		w.missed(s.Charged.Charges(), shown)
		return
	}
	if _, err := w.b.candidate.Settle(ctx, throttler.Settlement{Now: s.Now, Charged: d, Costs: s.Costs}); err != nil {
		w.b.counts.failed.Add(1)
		w.missed(s.Charged.Charges(), shown)
	}
}
