package throttler

import (
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// A Policy is a named list of limits.
type Policy = quota.Policy

// A Limit is a quota of units per window.
type Limit = quota.Limit

// A Charge asks for some units under a policy for a key.
type Charge = quota.Charge

// A Status is what a decision says of one limit.
type Status = decision.Status

// An Algorithm is how a limit counts.
type Algorithm = quota.Algorithm

// The algorithms: see package quota.
const (
	FixedWindow   = quota.FixedWindow
	SlidingWindow = quota.SlidingWindow
	SlidingLog    = quota.SlidingLog
	TokenBucket   = quota.TokenBucket
	LeakyBucket   = quota.LeakyBucket
)

// What errors wrap. A refusal is not an error.
var (
	ErrInvalid     = quota.ErrInvalid      // a bad argument; nothing was charged
	ErrUnavailable = driver.ErrUnavailable // the backend did not answer, and may have charged
	ErrNotSent     = driver.ErrNotSent     // with ErrUnavailable: nothing was sent, so nothing was charged
	ErrFailClosed  = driver.ErrFailClosed  // with ErrUnavailable: the policy allows nothing until the backend answers
)

// MayHaveCharged reports whether err, of a Take, a Refund or a Settle, leaves open
// whether units were charged or given back. After any other error none were.
func MayHaveCharged(err error) bool { return driver.MayHaveCharged(err) }
