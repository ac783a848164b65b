package backendtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// t0 is the instant that timelines count from. It is not a multiple of a second, so that a
// backend that rounds to one fails.
var t0 = time.Date(2030, time.January, 1, 0, 0, 0, 250e6, time.UTC)

// step is one line of a timeline. It does one of take, peek, refund, settle and reset.
type step struct {
	at       time.Duration      // the clock's time, after t0
	process  int                // 0 or 1, each with its own throttler and clock
	take     []throttler.Charge // charges to take
	as       string             // names the take for a refund or a settlement
	peek     []throttler.Charge // charges to peek at
	refund   string             // name of the take to refund
	settle   string             // name of the take to settle
	costs    []int64            // its real costs; of a take or peek, the charged costs if they differ from the asked
	reset    []throttler.Charge // charges of the counts to forget
	anyTimes bool               // instants are not compared
	want     statuses           // all limits afterwards; nil for a reset, and for a second refund or settlement
}

// statuses is what a decision must report about its limits. It is allowed if no limit refused.
type statuses []status

type status struct {
	used, remaining int64
	resetAt         time.Duration // after t0, as all of these
	refused         bool
	retryAt         time.Duration // if refused; forever is decision.Never
	starts          bool          // startAt is checked: a leaky bucket was charged
	startAt         time.Duration
}

const forever = time.Duration(math.MaxInt64)

// room is a limit that had room.
func room(used, remaining int64, resetAt time.Duration) statuses {
	return statuses{{used: used, remaining: remaining, resetAt: resetAt}}
}

// full is a limit that refused.
func full(used, remaining int64, resetAt, retryAt time.Duration) statuses {
	return statuses{{used: used, remaining: remaining, resetAt: resetAt, refused: true, retryAt: retryAt}}
}

// queued is a leaky bucket that was charged.
func queued(used, remaining int64, resetAt, startAt time.Duration) statuses {
	return statuses{{used: used, remaining: remaining, resetAt: resetAt, starts: true, startAt: startAt}}
}

// all is several limits, in the order of the charges and their limits.
func all(lists ...statuses) statuses {
	var s statuses
	for i := range lists {
		s = append(s, lists[i]...)
	}
	return s
}

// charging returns charges for the key alice under a policy of these limits.
func charging(limits ...throttler.Limit) func(cost int64) []throttler.Charge {
	return named("core", limits...)
}

func named(name string, limits ...throttler.Limit) func(cost int64) []throttler.Charge {
	p := &throttler.Policy{Name: name, Limits: limits}
	return func(cost int64) []throttler.Charge {
		return []throttler.Charge{{Policy: p, Key: "alice", Cost: cost}}
	}
}

// play runs a timeline and returns the error of the first step that fails.
func play(ctx context.Context, backend driver.Backend, steps []step) error {
	p := newPlayer(backend)
	for i := range steps {
		if err := p.step(ctx, &steps[i]); err != nil {
			return fmt.Errorf("step %d of %d, %v: %w", i+1, len(steps), &steps[i], err)
		}
	}
	return nil
}

type player struct {
	backend   driver.Backend
	processes [2]*throttler.Throttler
	clocks    [2]*clock.Manual
	takes     map[string]throttler.Decision
}

func newPlayer(backend driver.Backend) *player {
	p := &player{backend: backend, takes: make(map[string]throttler.Decision)}
	for i := range p.processes {
		p.clocks[i] = clock.NewManual(t0)
		p.processes[i] = throttler.New(backend, &throttler.Options{Clock: p.clocks[i]})
	}
	return p
}

func (p *player) step(ctx context.Context, s *step) error {
	p.clocks[s.process].Set(t0.Add(s.at))
	t := p.processes[s.process]
	take := p.takes[cmp.Or(s.refund, s.settle)]
	var d throttler.Decision
	var direct driver.Decision // of a step that goes past the throttler
	var err error
	charges := s.take
	if s.peek != nil {
		charges = s.peek
	} else if s.take == nil {
		charges = take.Charges()
	}
	switch empty := asksNothing(charges); {
	case s.reset != nil:
		return t.Reset(ctx, s.reset...)
	case empty:
		direct, err = p.direct(ctx, s, take)
		d = decided(direct)
	case s.take != nil:
		d, err = t.Take(ctx, s.take...)
	case s.peek != nil:
		d, err = t.Peek(ctx, s.peek...)
	case s.refund != "":
		d, err = t.Refund(ctx, take)
	case s.settle != "":
		d, err = t.Settle(ctx, take, s.costs...)
	}
	if s.take != nil {
		p.takes[s.as] = d
	}
	if err != nil {
		return err
	}
	if s.want == nil {
		if s.take != nil || s.peek != nil {
			return errors.New("the suite is wrong: the step wants nothing")
		}
		return nil
	}
	return s.compare(d, charges)
}

// direct makes the request of s to the backend, past the throttler.
func (p *player) direct(ctx context.Context, s *step, take throttler.Decision) (driver.Decision, error) {
	switch {
	case s.take != nil:
		return p.backend.Take(ctx, p.request(s, s.take))
	case s.peek != nil:
		return p.backend.Peek(ctx, p.request(s, s.peek))
	case s.refund != "":
		return p.backend.Settle(ctx, p.settlement(s, take, make([]int64, len(take.Charges()))))
	default:
		return p.backend.Settle(ctx, p.settlement(s, take, s.costs))
	}
}

// decided returns d, from a call past the throttler, as a throttler's decision.
func decided(d driver.Decision) throttler.Decision {
	return throttler.Decision{Decision: decision.FromDriver(d)}
}

// asksNothing reports whether a cost is 0. A Throttler reads 0 as 1, so such charges
// go to the backend directly.
func asksNothing(charges []throttler.Charge) bool {
	return slices.ContainsFunc(charges, func(c throttler.Charge) bool { return c.Cost == 0 })
}

func (p *player) request(s *step, charges []throttler.Charge) driver.Request {
	charges = slices.Clone(charges)
	for i := range charges {
		if charges[i].Partition == "" {
			charges[i].Partition = charges[i].Key
		}
	}
	return driver.NewRequest(p.now(s), charges...)
}

func (p *player) settlement(s *step, charged throttler.Decision, costs []int64) driver.Settlement {
	return driver.Settlement{Now: p.now(s), Charged: *charged.Driver(), Costs: costs}
}

func (p *player) now(s *step) int64 {
	return p.clocks[s.process].Now().UnixMilli()
}

func (s *step) compare(d throttler.Decision, charges []throttler.Charge) error {
	if now := t0.Add(s.at).Truncate(time.Millisecond); !d.At().Equal(now) {
		return fmt.Errorf("the decision's At is %s, want %s", after(d.At()), after(now))
	}
	if s.settle == "" && s.costs != nil {
		charges = slices.Clone(charges)
		for i := range charges {
			charges[i].Cost = s.costs[i]
		}
	}
	if err := reportsAll(d, charges); err != nil {
		return err
	}
	if d.NumLimits() != len(s.want) {
		return fmt.Errorf("%d limits are reported, want %d", d.NumLimits(), len(s.want))
	}
	allowed := true
	for i := range s.want {
		allowed = allowed && !s.want[i].refused
		got := d.Limit(i)
		if s.anyTimes {
			got.ResetAt, got.RetryAt, got.StartAt = t0.Add(s.want[i].resetAt), time.Time{}, time.Time{}
			if got.Refused {
				got.RetryAt = t0
			}
		}
		if err := s.want[i].compare(got); err != nil {
			return fmt.Errorf("limit %d, %v, of policy %q: %w", i, d.Limit(i).Limit, d.Limit(i).Policy.Name, err)
		}
	}
	if d.Allowed != allowed {
		return fmt.Errorf("got allowed %v, want %v", d.Allowed, allowed)
	}
	return nil
}

// reportsAll checks that d reports charges and all of their limits, in order.
func reportsAll(d throttler.Decision, charges []throttler.Charge) error {
	if len(d.Charges()) != len(charges) {
		return fmt.Errorf("the decision is about %d charges, want %d", len(d.Charges()), len(charges))
	}
	place := 0
	for i, c := range charges {
		if g := d.Charges()[i]; g.Policy != c.Policy || g.Key != c.Key || g.Cost != c.Cost {
			return fmt.Errorf("charge %d is %d of %s/%.40q, want %d of %s/%.40q", i, g.Cost, g.Policy.Name, g.Key, c.Cost, c.Policy.Name, c.Key)
		}
		for j, l := range c.Policy.Limits {
			if place == d.NumLimits() {
				return fmt.Errorf("%d limits are reported; charge %d, limit %d is missing", place, i, j)
			}
			g := d.Limit(place)
			if g.Policy != c.Policy || g.Key != c.Key || g.Cost != l.Units(c.Cost) || g.Limit != l {
				return fmt.Errorf("status %d is about cost %d of %v for %.40q, want charge %d, limit %d: cost %d of %v for %.40q",
					place, g.Cost, g.Limit, g.Key, i, j, c.Cost, l, c.Key)
			}
			place++
		}
	}
	return nil
}

func (w *status) compare(g decision.Status) error {
	retryAt, startAt := time.Time{}, time.Time{}
	switch {
	case w.refused && w.retryAt == forever:
		retryAt = decision.Never
	case w.refused:
		retryAt = t0.Add(w.retryAt)
	}
	if w.starts {
		startAt = t0.Add(w.startAt)
	}
	var wrong []string
	differs := func(name string, got, want any) {
		wrong = append(wrong, fmt.Sprintf("got %s %v, want %v", name, got, want))
	}
	if g.Used != w.used {
		differs("used", g.Used, w.used)
	}
	if g.Remaining != w.remaining {
		differs("remaining", g.Remaining, w.remaining)
	}
	if !g.ResetAt.Equal(t0.Add(w.resetAt)) {
		differs("reset at", after(g.ResetAt), after(t0.Add(w.resetAt)))
	}
	if g.Refused != w.refused {
		differs("refused", g.Refused, w.refused)
	}
	if !g.RetryAt.Equal(retryAt) {
		differs("retry at", after(g.RetryAt), after(retryAt))
	}
	if !g.StartAt.Equal(startAt) {
		differs("start at", after(g.StartAt), after(startAt))
	}
	if wrong == nil {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}

// after writes an instant as timelines do.
func after(instant time.Time) string {
	switch {
	case instant.IsZero():
		return "zero"
	case instant.Equal(decision.Never):
		return "never"
	}
	return fmt.Sprintf("t0%+dms", instant.UnixMilli()-t0.UnixMilli())
}

// String writes the step as "at t0+5ms: take 1 of core/"alice"".
func (s *step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %s", after(t0.Add(s.at)))
	if s.process != 0 {
		fmt.Fprintf(&b, ", process %d", s.process)
	}
	switch {
	case s.refund != "":
		fmt.Fprintf(&b, ": refund %s", s.refund)
	case s.settle != "":
		fmt.Fprintf(&b, ": settle %s at %d", s.settle, s.costs)
	case s.peek != nil:
		b.WriteString(": peek ")
	case s.reset != nil:
		b.WriteString(": reset ")
	default:
		b.WriteString(": take ")
	}
	for i, c := range slices.Concat(s.take, s.peek, s.reset) {
		if i > 0 {
			b.WriteString(" and ")
		}
		if c.Mode != quota.Enforce {
			fmt.Fprintf(&b, "%v ", c.Mode)
		}
		fmt.Fprintf(&b, "%d of %s/%.40q", c.Cost, c.Policy.Name, c.Key)
		if c.Partition != "" {
			fmt.Fprintf(&b, " in %.40q", c.Partition)
		}
	}
	return b.String()
}
