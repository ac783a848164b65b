package backendtest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

var historySteps = flag.Int("history-steps", 500, "random steps that Histories runs for each mix of algorithms")

// Histories runs random histories on a backend and on package algorithm, and
// compares every answer: takes of various costs and modes, peeks, refunds and settlements,
// also late ones and twice, by receipts, resets, renewals, clock jumps both ways, edges hit
// exactly, policies that change under processes with the old and the new form. A receipt must be
// settled at most once, and a charge from before a reset must lower no count.
// It does so for each algorithm alone and for mixes of up to four limits and
// three charges. open returns an empty backend; it is called for each history.
//
// The flag -history-steps chooses a longer run. The seed is fixed; the environment variable
// WEIR_SEED sets another one. A failure prints it, and the history of the keys concerned.
func Histories(t *testing.T, open func(t *testing.T) driver.Backend) {
	seed := testseed.Of(t)
	for _, a := range quota.Algorithms() {
		t.Run(a.String(), func(t *testing.T) { histories(t, open, seed, []quota.Algorithm{a}) })
	}
	t.Run("mixed", func(t *testing.T) { histories(t, open, seed, quota.Algorithms()) })
}

// A history is short, so that counts that servers expire in real time, but live by the manual
// clock, hardly matter. Their margin should be long even so.
const stepsInHistory = 250

func histories(t *testing.T, open func(t *testing.T) driver.Backend, seed uint64, algorithms []quota.Algorithm) {
	rng := rand.New(rand.NewPCG(seed, uint64(len(algorithms))<<8|uint64(algorithms[0])))
	for done := 0; done < *historySteps; done += stepsInHistory {
		h := newHistory(rng, algorithms, open(t))
		for range stepsInHistory {
			if err := h.step(t.Context()); err != nil {
				t.Fatalf("%v\nafter:\n%s", err, h.last(40))
			}
		}
	}
}

// history drives a backend and the model with the same steps.
type history struct {
	rng           *rand.Rand
	algorithms    []quota.Algorithm
	clock         *clock.Manual
	model, tested *throttler.Throttler
	backends      [2]driver.Backend   // of model and tested
	policies      []*throttler.Policy // the present form of each
	before        []*throttler.Policy // the previous form of each, which some processes still use
	takes         []*take
	focus         *take             // see anyTaken
	resets        map[[3]string]int // by policy, key and partition
	edges         []time.Time       // instants in answers
	lines         []func() string   // the history, for a failure
}

type take struct {
	model, tested throttler.Decision
	receipts      [2]string // texts of model and other, if any
	settled       bool      // by a receipt, or here
	direct        bool      // and not by a receipt: a second settlement here does nothing
	resets        []int     // how often each of the charges' counts had been reset
}

func newHistory(rng *rand.Rand, algorithms []quota.Algorithm, backend driver.Backend) *history {
	start := time.UnixMilli(1_900_000_000_000 + rng.Int64N(1e9))
	h := &history{rng: rng, algorithms: algorithms, clock: clock.NewManual(start)}
	h.backends = [2]driver.Backend{model{}, backend}
	h.resets = make(map[[3]string]int)
	h.model = throttler.New(h.backends[0], &throttler.Options{Clock: h.clock, ReceiptKey: receiptKey})
	h.tested = throttler.New(backend, &throttler.Options{Clock: h.clock, ReceiptKey: receiptKey})
	for i := range 3 {
		h.policies = append(h.policies, h.policy(fmt.Sprintf("p%d", i)))
	}
	h.before = append(h.before, h.policies...)
	return h
}

func (h *history) step(ctx context.Context) error {
	h.moveClock()
	switch n := h.rng.IntN(100); {
	case n < 60:
		return h.take(ctx)
	case n < 75:
		return h.peek(ctx)
	case n < 82 && len(h.takes) > 0:
		return h.lowersNothingOld(ctx, h.refund)
	case n < 87 && len(h.takes) > 0:
		return h.lowersNothingOld(ctx, h.settle)
	case n < 92 && len(h.takes) > 0:
		return h.lowersNothingOld(ctx, h.deliver)
	case n < 94 && len(h.takes) > 0:
		return h.lowersNothingOld(ctx, h.settleAgain)
	case n < 97 && len(h.takes) > 0:
		return h.renew(ctx, h.anyTaken())
	case n < 98:
		return h.reset(ctx)
	default:
		h.changePolicy()
	}
	return nil
}

func (h *history) moveClock() {
	switch n := h.rng.IntN(20); {
	case n < 8: // stays
	case n < 12:
		h.clock.Advance(time.Duration(h.rng.IntN(10)) * time.Millisecond)
	case n < 15:
		window := h.policies[h.rng.IntN(len(h.policies))].Limits[0].Length()
		h.clock.Advance(time.Duration(h.rng.Int64N(int64(window)*2 + 1)).Truncate(time.Millisecond))
	case n < 19:
		if len(h.edges) > 0 {
			edge := h.edges[h.rng.IntN(len(h.edges))].Add(time.Duration(h.rng.IntN(3)-1) * time.Millisecond)
			// An edge of a year's window would make everything else dead.
			if d := edge.Sub(h.clock.Now()); d < 48*time.Hour && d > -time.Hour {
				h.clock.Set(edge)
			}
		}
	default:
		h.clock.Advance(-time.Duration(h.rng.IntN(5000)) * time.Millisecond)
	}
}

func (h *history) take(ctx context.Context) error {
	charges := h.charges()
	want, errWant := h.model.Take(ctx, charges...)
	got, errGot := h.tested.Take(ctx, charges...)
	h.note("take %v: %v", charges, got)
	if want.Allowed && errGot == nil {
		t := &take{model: want, tested: got}
		for _, c := range want.Charges() {
			t.resets = append(t.resets, h.resets[nameOfCount(c)])
		}
		if h.rng.IntN(3) == 0 {
			if err := h.receipt(t); err != nil {
				return err
			}
		}
		h.takes = append(h.takes, t)
	}
	return h.compare("take", got, want, errGot, errWant)
}

func (h *history) peek(ctx context.Context) error {
	charges := h.charges()
	want, errWant := h.model.Peek(ctx, charges...)
	got, errGot := h.tested.Peek(ctx, charges...)
	h.note("peek %v: %v", charges, got)
	return h.compare("peek", got, want, errGot, errWant)
}

// anyTaken returns a take: half of the time the same one for a while, so that much happens to it.
func (h *history) anyTaken() *take {
	if h.focus == nil || h.rng.IntN(12) == 0 {
		h.focus = h.takes[len(h.takes)-1]
	}
	if h.rng.IntN(2) == 0 {
		return h.focus
	}
	return h.takes[h.rng.IntN(len(h.takes))]
}

// nameOfCount returns the name of c's count.
func nameOfCount(c throttler.Charge) [3]string { return [3]string{c.Policy.Name, c.Key, c.Partition} }

// lowersNothingOld calls settle with a take, and fails if that lowers a count that was reset
// since. Units in flight may end: a renewal may have taken them after the reset.
func (h *history) lowersNothingOld(ctx context.Context, settle func(context.Context, *take) error) error {
	d := h.anyTaken()
	var old []throttler.Charge
	for i, c := range d.tested.Charges() {
		if c.Cost, c.Mode = 1, quota.Enforce; h.resets[nameOfCount(c)] != d.resets[i] {
			old = append(old, c)
		}
	}
	var before throttler.Decision
	var err error
	if len(old) > 0 {
		if before, err = h.tested.Peek(ctx, old...); err != nil {
			return err
		}
	}
	if err := settle(ctx, d); err != nil || len(old) == 0 {
		return err
	}
	after, err := h.tested.Peek(ctx, old...)
	if err != nil {
		return err
	}
	for i, l := range after.Limits() {
		saturated := l.ResetAt.Equal(decision.Never) // a bucket counts what drains before the last instant
		if old := before.Limit(i); !l.Limit.Algorithm.Holds() && !saturated && l.Used < old.Used {
			return fmt.Errorf("%s of %s was reset since the charge, and is lowered from %d to %d", l.Policy.Name, l.Key, old.Used, l.Used)
		}
	}
	return nil
}

// receipt makes the receipts of t.
func (h *history) receipt(t *take) error {
	var errWant, errGot error
	t.receipts[0], errWant = h.model.Receipt(t.model)
	t.receipts[1], errGot = h.tested.Receipt(t.tested)
	if (errGot == nil) != (errWant == nil) {
		return fmt.Errorf("receipt: error %w, the model's %w", errGot, errWant)
	}
	return nil
}

// deliver settles or refunds d by its receipt, as another process does, or d itself if it has none.
func (h *history) deliver(ctx context.Context, d *take) error {
	if d.receipts[0] == "" {
		return h.settle(ctx, d)
	}
	expected, errWant := h.model.Open(d.receipts[0])
	opened, errGot := h.tested.Open(d.receipts[1])
	if errGot != nil || errWant != nil {
		return fmt.Errorf("open: error %w, the model's %w", errGot, errWant)
	}
	costs := h.costs(d)
	if h.rng.IntN(3) == 0 {
		clear(costs)
	}
	want, errWant := h.model.Settle(ctx, expected, costs...)
	got, errGot := h.tested.Settle(ctx, opened, costs...)
	h.note("delivery of %v %v to %v: %v, %v", d.tested.At().UnixMilli(), d.tested.Charges(), costs, got, errGot)
	return h.settledOnce(d, "delivery", got, want, errGot, errWant)
}

// settledOnce compares the settlement of d, which has a receipt.
func (h *history) settledOnce(d *take, step string, got, want throttler.Decision, errGot, errWant error) error {
	if errGot == nil && d.settled {
		return fmt.Errorf("%s: a receipt is settled twice", step)
	}
	if errors.Is(errGot, throttler.ErrSettled) != errors.Is(errWant, throttler.ErrSettled) || errors.Is(errGot, throttler.ErrSettled) && !d.settled {
		return fmt.Errorf("%s, settled before: %v: error %w, the model's %w", step, d.settled, errGot, errWant)
	}
	d.settled = d.settled || errGot == nil
	return h.compare(step, got, want, errGot, errWant)
}

// settledHere compares a settlement of d by the process that took it.
func (h *history) settledHere(d *take, step string, got, want throttler.Decision, errGot, errWant error) error {
	if d.receipts[0] == "" || d.direct {
		return h.compare(step, got, want, errGot, errWant)
	}
	d.direct = errGot == nil
	return h.settledOnce(d, step, got, want, errGot, errWant)
}

// costs returns a random real cost of each of d's charges.
func (h *history) costs(d *take) []int64 {
	costs := make([]int64, len(d.model.Charges()))
	for i, c := range d.model.Charges() {
		costs[i] = h.cost(c.Policy)
	}
	return costs
}

func (h *history) refund(ctx context.Context, d *take) error {
	want, errWant := h.model.Refund(ctx, d.model)
	got, errGot := h.tested.Refund(ctx, d.tested)
	h.note("refund of %v %v: %v", d.tested.At().UnixMilli(), d.tested.Charges(), got)
	return h.settledHere(d, "refund", got, want, errGot, errWant)
}

// settle settles d, or now and then only ends its units in flight.
func (h *history) settle(ctx context.Context, d *take) error {
	costs := h.costs(d)
	if h.rng.IntN(4) == 0 {
		costs = nil
	}
	want, errWant := h.model.Settle(ctx, d.model, costs...)
	got, errGot := h.tested.Settle(ctx, d.tested, costs...)
	h.note("settle of %v %v to %v: %v", d.tested.At().UnixMilli(), d.tested.Charges(), costs, got)
	if costs == nil {
		return h.compare("end of units in flight", got, want, errGot, errWant)
	}
	return h.settledHere(d, "settle", got, want, errGot, errWant)
}

func (h *history) renew(ctx context.Context, d *take) error {
	want, errWant := h.model.Renew(ctx, d.model)
	got, errGot := h.tested.Renew(ctx, d.tested)
	h.note("renewal of %v %v: %v", d.tested.At().UnixMilli(), d.tested.Charges(), got)
	return h.compare("renewal", got, want, errGot, errWant)
}

// settleAgain settles a take a second time, past its throttler, which allows only
// one: a process that restarted, or that has a bug, may do so.
func (h *history) settleAgain(ctx context.Context, d *take) error {
	costs := make([]int64, len(d.model.Charges()))
	for i, c := range d.model.Charges() {
		if h.rng.IntN(2) == 0 {
			costs[i] = h.cost(c.Policy)
		}
	}
	want, errWant := h.backends[0].Settle(ctx, driver.Settlement{Now: h.clock.Now().UnixMilli(), Charged: *d.model.Driver(), Costs: costs})
	got, errGot := h.backends[1].Settle(ctx, driver.Settlement{Now: h.clock.Now().UnixMilli(), Charged: *d.tested.Driver(), Costs: costs})
	h.note("settle again of %v %v to %v: %v", d.tested.At().UnixMilli(), d.tested.Charges(), costs, decided(got))
	return h.compare("settle again", decided(got), decided(want), errGot, errWant)
}

func (h *history) reset(ctx context.Context) error {
	charges := h.charges()
	if len(h.takes) > 0 && h.rng.IntN(2) == 0 {
		charges = h.anyTaken().tested.Charges()
	}
	errWant := h.model.Reset(ctx, charges...)
	errGot := h.tested.Reset(ctx, charges...)
	h.note("reset %v", charges)
	for _, c := range charges {
		if c.Partition = cmp.Or(c.Partition, c.Key); errGot == nil {
			h.resets[nameOfCount(c)]++
		}
	}
	return h.compare("reset", throttler.Decision{}, throttler.Decision{}, errGot, errWant)
}

func (h *history) charges() []throttler.Charge {
	charges := make([]throttler.Charge, 1+h.rng.IntN(3)*h.rng.IntN(2))
	for i := range charges {
		n := h.rng.IntN(len(h.policies))
		p := h.policies[n]
		if h.rng.IntN(3) == 0 {
			p = h.before[n]
		}
		charges[i] = throttler.Charge{Policy: p, Key: fmt.Sprintf("k%d", i), Cost: h.cost(p), Partition: "part"}
		if h.rng.IntN(3) == 0 {
			charges[i].Mode = quota.Mode(h.rng.IntN(int(quota.Capped) + 1))
		}
	}
	if h.rng.IntN(4) == 0 {
		charges = charges[:1]
		charges[0].Partition = ""
	}
	return charges
}

func (h *history) cost(p *throttler.Policy) int64 {
	capacity := p.Limits[h.rng.IntN(len(p.Limits))].Capacity()
	switch h.rng.IntN(8) {
	case 0:
		return 0
	case 1:
		return min(capacity, quota.MaxQuota)
	case 2:
		return min(capacity+1, quota.MaxQuota)
	case 3:
		return h.rng.Int64N(capacity) + 1
	case 4:
		return capacity/2 + 1
	}
	return 1
}

func (h *history) policy(name string) *throttler.Policy {
	for {
		p := &throttler.Policy{Name: name}
		for range 1 + h.rng.IntN(4) {
			p.Limits = append(p.Limits, h.limit())
		}
		if p.Validate() == nil {
			return p
		}
	}
}

// changePolicy changes a policy as a deploy would: a quota, a window, the order of limits, or
// an additional limit.
func (h *history) changePolicy() {
	i := h.rng.IntN(len(h.policies))
	p := &throttler.Policy{Name: h.policies[i].Name, Limits: append([]throttler.Limit(nil), h.policies[i].Limits...)}
	l := &p.Limits[h.rng.IntN(len(p.Limits))]
	switch h.rng.IntN(6) {
	case 0:
		l.Quota = 1 + h.rng.Int64N(2*l.Quota)
	case 1:
		l.Window = (l.Window/2 + time.Duration(h.rng.IntN(2000))*time.Millisecond).Truncate(time.Millisecond)
	case 4:
		l.Window = l.Window*time.Duration(1+h.rng.IntN(3)) + time.Duration(h.rng.IntN(2000))*time.Millisecond
	case 5:
		p.Limits = p.Limits[:max(len(p.Limits)-1, 1)]
	case 2:
		h.rng.Shuffle(len(p.Limits), func(i, j int) { p.Limits[i], p.Limits[j] = p.Limits[j], p.Limits[i] })
	case 3:
		p.Limits = append(p.Limits, h.limit())
	}
	if p.Validate() == nil {
		h.before[i], h.policies[i] = h.policies[i], p
		h.note("policy %s is now %v", p.Name, p.Limits)
	}
}

// limit returns a valid limit, with fields set that its algorithm allows.
func (h *history) limit() throttler.Limit {
	windows := []time.Duration{time.Millisecond, 7 * time.Millisecond, time.Second, 3 * time.Second, time.Minute, time.Hour, 100 * time.Hour, 365 * 24 * time.Hour}
	quotas := []int64{1, 2, 3, 5, 7, 10, 60, 999, 5000, 65535, 65537, 1_000_003, 1<<53 - 1, 1 << 53}
	valid := func(l throttler.Limit) bool {
		return (&throttler.Policy{Name: "p", Limits: []throttler.Limit{l}}).Validate() == nil
	}
	l := throttler.Limit{Algorithm: h.algorithms[h.rng.IntN(len(h.algorithms))]}
	for !valid(l) {
		l.Quota, l.Window = quotas[h.rng.IntN(len(quotas))], windows[h.rng.IntN(len(windows))]
	}
	for _, change := range []func(l *throttler.Limit){
		func(l *throttler.Limit) { l.Aligned = true },
		func(l *throttler.Limit) {
			l.Window, l.Calendar = 0, quota.Calendar{Period: quota.Period(1 + h.rng.IntN(3)), Zone: "America/Havana"}
		},
		func(l *throttler.Limit) { l.Burst = quotas[h.rng.IntN(len(quotas))] },
		func(l *throttler.Limit) { l.MaxWait = time.Duration(1+h.rng.IntN(5000)) * time.Millisecond },
	} {
		changed := l
		if change(&changed); h.rng.IntN(2) == 0 && valid(changed) {
			l = changed
		}
	}
	return l
}

func (h *history) compare(step string, got, want throttler.Decision, errGot, errWant error) error {
	if (errGot == nil) != (errWant == nil) {
		return fmt.Errorf("%s: error %w, the model's %w", step, errGot, errWant)
	}
	if got.Allowed != want.Allowed || got.NumLimits() != want.NumLimits() {
		return fmt.Errorf("%s: got  %s\nthe model says %s", step, line(got), line(want))
	}
	for i, c := range want.Charges() {
		if g := got.Charges()[i]; g.Cost != c.Cost || g.Mode != c.Mode {
			return fmt.Errorf("%s: charge %d is %v of %d, the model's %v of %d", step, i, g.Mode, g.Cost, c.Mode, c.Cost)
		}
	}
	for i := range want.Limits() {
		g, w := got.Limit(i), want.Limit(i)
		if !sameLimit(g, w) {
			return fmt.Errorf("%s: limit %d, %v: got  %s\nthe model says %s", step, i, w.Limit, line(got), line(want))
		}
		if h.rng.IntN(3) == 0 {
			h.edges = append(h.edges, w.ResetAt)
			if w.Refused && !w.RetryAt.Equal(decision.Never) {
				h.edges = append(h.edges, w.RetryAt)
			}
		}
	}
	h.edges = h.edges[max(len(h.edges)-20, 0):]
	return nil
}

func sameLimit(a, b decision.Status) bool {
	return a.Used == b.Used && a.Remaining == b.Remaining && a.Refused == b.Refused && a.ResetAt.Equal(b.ResetAt) &&
		a.RetryAt.Equal(b.RetryAt) && a.NextAt.Equal(b.NextAt) && a.StartAt.Equal(b.StartAt)
}

// note records an event. It is formatted only for a failure.
func (h *history) note(format string, args ...any) {
	now := h.clock.Now().UnixMilli()
	h.lines = append(h.lines, func() string {
		for i := range args {
			switch arg := args[i].(type) {
			case throttler.Decision:
				args[i] = line(arg)
			case []throttler.Charge:
				var texts []string
				for _, c := range arg {
					texts = append(texts, fmt.Sprintf("%v %d of %s/%s/%s", c.Mode, c.Cost, c.Policy.Name, c.Key, c.Partition))
				}
				args[i] = strings.Join(texts, " + ")
			}
		}
		return fmt.Sprintf("%d ", now) + fmt.Sprintf(format, args...)
	})
}

// last returns the last n lines.
func (h *history) last(n int) string {
	var b strings.Builder
	for _, line := range h.lines[max(len(h.lines)-n, 0):] {
		fmt.Fprintln(&b, line())
	}
	return b.String()
}

func line(d throttler.Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "allowed=%v", d.Allowed)
	for i, s := range d.Limits() {
		fmt.Fprintf(&b, " [used %d of %d, reset %d, retry %d, next %d, start %d, mark %v]",
			s.Used, s.Limit.Capacity(), s.ResetAt.UnixMilli(), s.RetryAt.UnixMilli(), s.NextAt.UnixMilli(), s.StartAt.UnixMilli(), d.Driver().Results()[i].Mark)
	}
	return b.String()
}

// model is package algorithm as a backend, without locks, bounds or expiry.
type model map[[3]string]*algorithm.State

func (m model) state(c throttler.Charge) *algorithm.State {
	name := [3]string{c.Policy.Name, c.Key, c.Partition}
	if m[name] == nil {
		m[name] = new(algorithm.State)
	}
	return m[name]
}

func (m model) states(charges []throttler.Charge) []*algorithm.State {
	states := make([]*algorithm.State, len(charges))
	for i := range charges {
		states[i] = m.state(charges[i])
	}
	return states
}

func (m model) Peek(_ context.Context, r driver.Request) (driver.Decision, error) {
	return algorithm.Evaluate(r, m.states(r.Charges())), nil
}

func (m model) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	return algorithm.Take(r, m.states(r.Charges())), nil
}

func (m model) Reset(_ context.Context, r driver.Request) error {
	for _, s := range m.states(r.Charges()) {
		s.Reset(r.Now)
	}
	return nil
}

func (m model) Settle(_ context.Context, s driver.Settlement) (driver.Decision, error) {
	return algorithm.Settle(s, m.states(s.Charged.Charges())), nil
}
