// Package observe is the hook for metrics, traces and logs. An [Observer] receives the events
// of a throttler and its backends.
package observe

import (
	"context"
	"encoding"
	"slices"
	"time"
)

// Observer receives the events of a throttler.Throttler and its backends, for metrics,
// traces and logs. Give it to the throttler, by its Options: its backend and its middlewares
// use it, too, unless they have one. Methods are called
// in the goroutine that serves a request or a server, so they must not block, and must be
// safe for concurrent use. No event contains a key, except the Decided of a refused take.
//
// Embed [Nothing] to implement only some of the methods, and to keep compiling
// when more are added.
type Observer interface {
	// Decided follows each Take, Peek, Wait, Refund, Settle, Reset and Pause of a Throttler.
	Decided(ctx context.Context, e Decided)

	// Sent follows each round trip of a backend to a server.
	Sent(e Sent)

	// Checked follows each check of a server: about once a second while the
	// backend is in use, and whenever its breaker opens or closes.
	Checked(e Checked)

	// Moved follows each change of the backend that keeps a count, and each failure to
	// change it.
	Moved(e Moved)

	// Failed follows each request without a decision, or with a decision made without the
	// shared counts, and each refund and settlement that was not made.
	Failed(e Failed)

	// Warned follows the first request that shows a likely mistake of configuration, errors
	// that keep a newer version of policies from being in force, and the loss of the last root
	// of synced counts.
	Warned(e Warned)
}

// Op is an operation of a Throttler.
type Op uint8

// A Refund is an OpSettle.
const (
	OpTake Op = iota
	OpPeek
	OpSettle
	OpWait // its Duration is how long it waited
	OpReset
	OpPause
)

// Ops is the number of Ops.
const Ops = int(OpPause) + 1

var opNames = [Ops]string{"take", "peek", "settle", "wait", "reset", "pause"}

func (o Op) String() string { return opNames[o] }

// Outcome is the outcome of a decision.
type Outcome uint8

const (
	// OutcomeAllowed is the outcome of an allowed decision, and of each settlement, reset
	// and pause.
	OutcomeAllowed Outcome = iota
	// OutcomeRefused is the outcome of a take or a peek that lacks room, and of a settlement by
	// a receipt that was settled before.
	OutcomeRefused
	// OutcomeInvalid is an error that wraps quota.ErrInvalid.
	OutcomeInvalid
	// OutcomeCanceled is the end of a context before anything was sent.
	OutcomeCanceled
	// OutcomeUnavailable is any other error.
	OutcomeUnavailable
	// OutcomeOverloaded is an error of this process, which was too busy to decide in time
	// while the backend answers.
	OutcomeOverloaded
)

// Outcomes is the number of Outcomes.
const Outcomes = int(OutcomeOverloaded) + 1

var outcomeNames = [Outcomes]string{"allowed", "refused", "invalid", "canceled", "unavailable", "overloaded"}

func (o Outcome) String() string { return outcomeNames[o] }

// Decided is one decision of a Throttler.
type Decided struct {
	Op      Op
	Outcome Outcome

	// Policy is the name of the policy with the limit that binds (see
	// decision.Decision.Binding), and Limit the limit's index in it. If the decision failed or
	// has no counts, or for a reset or a pause, Policy is the first charge's and Limit -1. If
	// there are no charges, Policy is "".
	Policy string
	Limit  int

	// Degraded is the decision's: it was made without the shared counts.
	Degraded bool

	// Key is the key of the limit that binds, and RetryAt when the charges would fit, if the
	// outcome of a take is OutcomeRefused; otherwise they are zero. A key may be a person's
	// address or name: keep it out of logs and metrics.
	Key     string
	RetryAt time.Time

	// Binding is the limit that binds, such as 60 per 1h. It is nil if Limit is -1.
	Binding encoding.TextMarshaler

	Start    time.Time
	Duration time.Duration
	Err      error // nil unless the decision failed; may contain addresses
}

// Sent is one round trip of a backend to a server.
type Sent struct {
	Backend   string // the package: "redisbackend"
	Shard     string
	Replica   bool // it went to a replica
	Decisions int  // number of decisions that shared it
	Start     time.Time
	Duration  time.Duration
	Err       error // may contain addresses
}

// Checked is the state of one server of a shard, as a backend knows it.
type Checked struct {
	Backend string // the package: "redisbackend"
	Shard   string
	Server  string // "primary", "replica 0"; in a cluster, the node's address
	Replica bool   // the server is a replica; Cut and Lag are about replicas alone

	// Open reports that the server's breaker is open: it does not answer, and is
	// sent no decisions. A root of package synced, and a member of package shares, has no
	// breaker: it did not answer the last message, and is sent the next one.
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

	// MaxSkew is how far the two may differ before counts are forgotten too early for
	// some process. 0 if SkewKnown is never true.
	MaxSkew time.Duration

	Err error // why the server does not answer; may contain addresses
}

// Moved is one change of the backend that keeps a count, or a failure to change it.
type Moved struct {
	From, To string // the backends' names
	Lost     bool   // From has been down for too long: the count begins again
	Err      error  // why it stays at From; may contain addresses
}

// Result is the result of a failure for a client.
type Result uint8

const (
	// ResultServed is the result of a request that was served without a decision.
	ResultServed Result = iota
	// ResultServedInDryRun is the result of a request that a dry run did not decide about.
	ResultServedInDryRun
	// ResultAnswered503 is the result of a request that was not served.
	ResultAnswered503
	// ResultAnswered500 is the result of a request that was not served because a policy or
	// cost is invalid.
	ResultAnswered500
	// ResultNotRefunded is the result of a refund that was not made.
	ResultNotRefunded
	// ResultNotSettled is the result of a settlement that was not made: the client keeps
	// the first charge.
	ResultNotSettled
	// ResultPooled is the result of a request that was counted together with other keys.
	ResultPooled
	// ResultLocal is the result of a request that this process decided about by its share of
	// the quotas, because the backend failed.
	ResultLocal
	// ResultNotCharged is the result of requests that this process allowed by its share, and
	// that are not charged to the backend, or may not be.
	ResultNotCharged
)

// Results is the number of Results.
const Results = int(ResultNotCharged) + 1

var resultNames = [Results]string{"served_without_limit", "served_in_dry_run", "answered_503", "answered_500", "not_refunded", "not_settled", "counted_together", "decided_locally", "not_charged"}

func (r Result) String() string { return resultNames[r] }

// CauseInvalid is the Cause of a Failed about an invalid policy or cost.
const CauseInvalid = "invalid argument"

// Failed is one failure, as package middleware or a backend saw it.
type Failed struct {
	Backend string // the package: "redisbackend"; "" if no backend failed
	Shard   string // of Backend; "" if it has none

	// Cause is a class of errors, such as "connection refused". There are few classes, and
	// they contain no addresses.
	Cause string

	// Detail says more, without addresses and keys; "" if Cause says it all.
	Detail string

	Policy string // the first charge's; "" if it is about no charges
	Result Result
}

// Warned is a likely mistake of configuration.
type Warned struct {
	Text   string // what happens
	Policy string // the requests' policy; "" if it does not matter
	Hint   string // how to fix it
}

// Nothing is an Observer that ignores all events.
type Nothing struct{}

// Decided does nothing.
func (Nothing) Decided(context.Context, Decided) {}

// Sent does nothing.
func (Nothing) Sent(Sent) {}

// Checked does nothing.
func (Nothing) Checked(Checked) {}

// Moved does nothing.
func (Nothing) Moved(Moved) {}

// Failed does nothing.
func (Nothing) Failed(Failed) {}

// Warned does nothing.
func (Nothing) Warned(Warned) {}

// All returns an Observer that passes each event to all of them, in order. It leaves
// out nil Observers.
func All(list ...Observer) Observer {
	o := new(joined)
	for _, part := range list {
		o.parts = append(o.parts, Parts(part)...)
	}
	return o
}

// Parts returns the Observers that [All] joined in o, or o alone, or none if o is nil.
func Parts(o Observer) []Observer {
	if j, ok := o.(*joined); ok {
		return slices.Clone(j.parts)
	}
	if o == nil {
		return nil
	}
	return []Observer{o}
}

// joined is the Observer of All. A pointer to it is comparable, as a slice is not.
type joined struct{ parts []Observer }

func (j *joined) Decided(ctx context.Context, e Decided) {
	for _, o := range j.parts {
		o.Decided(ctx, e)
	}
}

func (j *joined) Sent(e Sent)       { notify(j, Observer.Sent, e) }
func (j *joined) Checked(e Checked) { notify(j, Observer.Checked, e) }
func (j *joined) Moved(e Moved)     { notify(j, Observer.Moved, e) }
func (j *joined) Failed(e Failed)   { notify(j, Observer.Failed, e) }
func (j *joined) Warned(e Warned)   { notify(j, Observer.Warned, e) }

func notify[E any](j *joined, method func(Observer, E), e E) {
	for _, o := range j.parts {
		method(o, e)
	}
}
