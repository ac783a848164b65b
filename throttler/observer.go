package throttler

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Observer receives what a Throttler and its backends do, for metrics, traces and
// logs. Give the same one to each of them, by its Options. Methods are called in
// the goroutine that serves a request or a server, so they must not block, and must
// be safe for concurrent use. No event has a key.
//
// Embed [Unobserved] to implement only some of the methods, and to keep compiling
// when more are added.
type Observer interface {
	// Decided follows each Take, Peek, Refund and Settle of a Throttler.
	Decided(ctx context.Context, e Decided)

	// Sent follows each round trip of a backend to a server.
	Sent(e Sent)

	// Checked follows each check of a server: about once a second while the
	// backend is in use, and whenever its breaker opens or closes.
	Checked(e Checked)

	// Moved follows each change of the backend that keeps a count, and each that
	// failed.
	Moved(e Moved)
}

// Op is what a Throttler was asked for.
type Op uint8

// A Refund is an OpSettle.
const (
	OpTake Op = iota
	OpPeek
	OpSettle
)

var opNames = [...]string{"take", "peek", "settle"}

func (o Op) String() string { return opNames[o] }

// Outcome is what became of a decision.
type Outcome uint8

const (
	// OutcomeAllowed is the outcome of an allowed decision, and of each settlement.
	OutcomeAllowed Outcome = iota
	// OutcomeRefused is the outcome of a take or a peek that lacks room.
	OutcomeRefused
	// OutcomeInvalid is an error that wraps ErrInvalid.
	OutcomeInvalid
	// OutcomeCanceled is the end of a context before anything was sent.
	OutcomeCanceled
	// OutcomeUnavailable is any other error.
	OutcomeUnavailable
)

var outcomeNames = [...]string{"allowed", "refused", "invalid", "canceled", "unavailable"}

func (o Outcome) String() string { return outcomeNames[o] }

// Decided is one decision of a Throttler.
type Decided struct {
	Op      Op
	Outcome Outcome

	// Policy is the name of the policy whose limit binds (see [Decision.Binding])
	// and Limit the index of that limit in it. If the decision failed, Policy is the
	// first charge's and Limit -1; if it is about no charges, "" and -1.
	Policy string
	Limit  int

	// Degraded is the decision's: it was made without the shared counts.
	Degraded bool

	Start    time.Time
	Duration time.Duration
	Err      error // nil unless the decision failed; may have addresses in it
}

// Sent is one round trip of a backend to a server.
type Sent struct {
	Backend   string // the package: "redisbackend"
	Shard     string
	Replica   bool // it went to a replica
	Decisions int  // that shared it
	Start     time.Time
	Duration  time.Duration
	Err       error // may have addresses in it
}

// Checked is what a backend knows of one server of a shard.
type Checked struct {
	Backend string // the package: "redisbackend"
	Shard   string
	Server  string // "primary", "replica 0"; in a cluster, the node's address
	Replica bool   // of another server; Cut and Lag are about replicas alone

	// Open reports that the server's breaker is open: it does not answer, and is
	// sent no decisions.
	Open bool

	// Cut reports that the replica has lost its primary, or lags too far, and is
	// not asked.
	Cut bool

	// Lag is how far the replica's counts may be behind.
	Lag time.Duration

	// Skew is how far this process' clock is ahead of the server's, good to half a
	// round trip. It means nothing unless SkewKnown.
	Skew      time.Duration
	SkewKnown bool

	Err error // why the server does not answer; may have addresses in it
}

// Moved is one change of the backend that keeps a count, or a failure to change it.
type Moved struct {
	From, To string // the backends' names
	Lost     bool   // From has been down for too long: the count begins again
	Err      error  // why it stays at From; may have addresses in it
}

// Unobserved is an Observer that ignores all events.
type Unobserved struct{}

// Decided does nothing.
func (Unobserved) Decided(context.Context, Decided) {}

// Sent does nothing.
func (Unobserved) Sent(Sent) {}

// Checked does nothing.
func (Unobserved) Checked(Checked) {}

// Moved does nothing.
func (Unobserved) Moved(Moved) {}

// Observers returns an Observer that passes each event to all of them, in order. Those
// that are nil are left out.
func Observers(all ...Observer) Observer {
	return observers(slices.DeleteFunc(slices.Clone(all), func(o Observer) bool { return o == nil }))
}

type observers []Observer

func (all observers) Decided(ctx context.Context, e Decided) {
	for _, o := range all {
		o.Decided(ctx, e)
	}
}

func (all observers) Sent(e Sent) {
	for _, o := range all {
		o.Sent(e)
	}
}

func (all observers) Checked(e Checked) {
	for _, o := range all {
		o.Checked(e)
	}
}

func (all observers) Moved(e Moved) {
	for _, o := range all {
		o.Moved(e)
	}
}

// observed makes a decision about charges, and reports it to the observer.
func (t *Throttler) observed(ctx context.Context, op Op, charges []Charge) (d Decision, err error) {
	// Deferred, to see a backend that panics.
	defer func(start time.Time) { t.observe(ctx, op, charges, start, &d, err) }(time.Now())
	unobserved := *t
	unobserved.observer = nil
	if op == OpPeek {
		return unobserved.Peek(ctx, charges...)
	}
	err = unobserved.take(ctx, charges, &d) // Take adds the receipt
	return d, err
}

// observe reports a decision about charges to the observer, if there is one.
func (t *Throttler) observe(ctx context.Context, op Op, charges []Charge, start time.Time, d *Decision, err error) {
	e := Decided{Op: op, Limit: -1, Start: start, Duration: time.Since(start), Err: err}
	if err != nil {
		e.Outcome = outcomeOf(err)
		if len(charges) > 0 && charges[0].Policy != nil {
			e.Policy = charges[0].Policy.Name
		}
		t.observer.Decided(ctx, e)
		return
	}
	switch {
	case op == OpSettle || d.Allowed:
	case d.NumLimits() == 0: // the backend panics
		e.Outcome, e.Policy = OutcomeUnavailable, charges[0].Policy.Name
	default:
		e.Outcome = OutcomeRefused
	}
	e.Degraded = d.Degraded
	if d.NumLimits() > 0 {
		e.Policy, e.Limit = d.bindingLimit()
	}
	t.observer.Decided(ctx, e)
}

// bindingLimit returns the name of the policy that Binding reports on, and the index of
// the limit among the policy's.
func (d *Decision) bindingLimit() (policy string, limit int) {
	limit = d.binding()
	charges := d.Charges()
	for i := range charges {
		p := charges[i].Policy
		if limit < len(p.Limits) {
			return p.Name, limit
		}
		limit -= len(p.Limits)
	}
	panic("throttler: a decision has more results than limits")
}

func outcomeOf(err error) Outcome {
	switch {
	case errors.Is(err, ErrInvalid):
		return OutcomeInvalid
	case errors.Is(err, ErrUnavailable):
		return OutcomeUnavailable
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return OutcomeCanceled
	}
	return OutcomeUnavailable
}
