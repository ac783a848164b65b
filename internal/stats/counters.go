package stats

import (
	"context"
	"encoding"
	"sync/atomic"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/quota"
)

// Metric is a metric that counts events.
type Metric uint8

// The metrics. Prometheus calls the first weir_decisions_total, OpenTelemetry weir.decisions.
const (
	Decisions Metric = iota
	Refusals
	Degraded
	Moves
	Failures
)

// Metrics has the name, the unit, a description and the labels of each Metric.
var Metrics = [...]struct {
	Name, Unit, Help string
	Labels           []string
}{
	Decisions: {"decisions", "{decision}", "Decisions, by the policy whose limit binds.", []string{"policy", "op", "outcome"}},
	Refusals:  {"refusals", "{decision}", "Refused takes, by the limit that refused, such as 60 per 1h.", []string{"policy", "limit"}},
	Degraded:  {"degraded_decisions", "{decision}", "Decisions made without the shared counts.", []string{"policy"}},
	Moves:     {"moves", "{count}", "Counts that moved to another backend, or could not.", []string{"from", "to", "outcome"}},
	Failures:  {"failures", "{failure}", "Requests that the shared counts did not decide, and refunds, settlements and charges that failed.", []string{"backend", "shard", "cause", "result"}},
}

// Counter is a series of a Metric.
type Counter interface{ Inc(ctx context.Context) }

// Counters counts decisions, moves and failures.
type Counters struct {
	create   func(m Metric, labels ...string) Counter
	policies Cache[string, *policy]
	moves    Cache[moveKey, *moveCounters]
	failures Cache[failureKey, Counter]
}

type (
	moveKey      struct{ from, to string }
	moveCounters [len(moveOutcomes)]Counter
	failureKey   struct{ backend, shard, cause, result string }
)

// policy contains the series of one policy.
type policy struct {
	name     string
	outcomes [observe.Ops]atomic.Pointer[[observe.Outcomes]Counter] // nil before the first decision
	refusals [maxRefusals]atomic.Pointer[refusals]
	degraded Counter
}

// maxRefusals bounds the limits of a policy that have series: overrides may have any limit. The
// last is for all others.
const maxRefusals = 16

// refusals is the series of a limit of a policy.
type refusals struct {
	limit   quota.Limit // zero if other is set
	other   string      // what else binds, such as a block
	counter Counter
}

// Init prepares c for at most that many policies, pairs of backends and kinds of failure.
// Later ones share the label Others. create creates a series, at zero.
func (c *Counters) Init(bound int, create func(m Metric, labels ...string) Counter) {
	c.create = create
	c.policies.Max, c.policies.Overflow, c.policies.Create = bound, Others, func(name string) *policy {
		return &policy{name: Label(name), degraded: create(Degraded, Label(name))}
	}
	c.moves.Max, c.moves.Overflow, c.moves.Create = bound, moveKey{Others, Others}, func(k moveKey) *moveCounters {
		outcomes := new(moveCounters) // all outcomes at once, so that the first loss is a rise
		for i, outcome := range moveOutcomes {
			outcomes[i] = create(Moves, Label(k.from), Label(k.to), outcome)
		}
		return outcomes
	}
	c.failures.Max, c.failures.Overflow, c.failures.Create = bound, failureKey{Others, Others, Others, Others}, func(k failureKey) Counter {
		return create(Failures, Label(k.backend), Label(k.shard), Label(k.cause), k.result)
	}
}

// Decided counts e, and returns its policy's label. ok is false if e is from a newer
// throttler.
func (c *Counters) Decided(ctx context.Context, e observe.Decided) (label string, ok bool) {
	if int(e.Op) >= observe.Ops || int(e.Outcome) >= observe.Outcomes {
		return "", false
	}
	p := c.policies.Get(e.Policy)
	counters := p.outcomes[e.Op].Load()
	if counters == nil {
		counters = c.outcomes(p, e.Op)
	}
	counters[e.Outcome].Inc(ctx)
	if e.Degraded {
		p.degraded.Inc(ctx)
	}
	if e.Op == observe.OpTake && e.Outcome == observe.OutcomeRefused && e.Binding != nil {
		c.refusals(p, e.Binding).Inc(ctx)
	}
	return p.name, true
}

// refusals returns the series of what refused.
func (c *Counters) refusals(p *policy, binding encoding.TextMarshaler) Counter {
	limit, isLimit := binding.(*quota.Limit)
	other := ""
	if !isLimit {
		other = text(binding)
	}
	for i := range p.refusals {
		r := p.refusals[i].Load()
		if r == nil {
			created := &refusals{other: other}
			label := other
			if isLimit {
				created.limit, label = *limit, text(limit)
			}
			if i == maxRefusals-1 {
				label = Others
			}
			created.counter = c.create(Refusals, p.name, label)
			if p.refusals[i].CompareAndSwap(nil, created) {
				return created.counter
			}
			r = p.refusals[i].Load()
		}
		if i == maxRefusals-1 || r.other == other && (!isLimit || r.limit == *limit) {
			return r.counter
		}
	}
	panic("stats: the last series is for all")
}

func text(binding encoding.TextMarshaler) string {
	b, err := binding.MarshalText()
	if err != nil {
		return Others
	}
	return Label(string(b))
}

// outcomes creates the series of all outcomes, so that their rates are right from the first
// decision on. If two goroutines do, they get the same series.
func (c *Counters) outcomes(p *policy, op observe.Op) *[observe.Outcomes]Counter {
	counters := new([observe.Outcomes]Counter)
	for i := range counters {
		counters[i] = c.create(Decisions, p.name, op.String(), observe.Outcome(i).String())
	}
	p.outcomes[op].Store(counters)
	return counters
}

// moveOutcomes are the labels of the outcomes of moves. A lost count begins again.
var moveOutcomes = [...]string{"moved", "lost", "failed"}

// Moved counts a move.
func (c *Counters) Moved(e observe.Moved) {
	outcome := 0
	switch {
	case e.Err != nil:
		outcome = 2
	case e.Lost:
		outcome = 1
	}
	c.moves.Get(moveKey{e.From, e.To})[outcome].Inc(context.Background())
}

// Failed counts a failure.
func (c *Counters) Failed(e observe.Failed) {
	if int(e.Result) < observe.Results { // otherwise e is from a newer throttler
		c.failures.Get(failureKey{e.Backend, e.Shard, e.Cause, e.Result.String()}).Inc(context.Background())
	}
}
