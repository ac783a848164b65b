package throttler

import (
	"errors"

	"github.com/weir-go/weir/internal/receiptkey"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A Policy is a named list of limits.
type Policy = quota.Policy

// A Limit is a quota of units per window.
type Limit = quota.Limit

// A Charge asks for some units under a policy for a key, in a [quota.Mode].
type Charge = quota.Charge

// The algorithms: see package quota.
const (
	FixedWindow   = quota.FixedWindow
	SlidingWindow = quota.SlidingWindow
	SlidingLog    = quota.SlidingLog
	TokenBucket   = quota.TokenBucket
	LeakyBucket   = quota.LeakyBucket
	InFlight      = quota.InFlight
)

// Errors wrap one of these, or a context's error. A refusal is not an error.
var (
	ErrInvalid     = quota.ErrInvalid      // a bad argument, or a Decision of another process; nothing was charged
	ErrSettled     = errSettled            // another process has refunded or settled it, by a receipt
	ErrReceiptKey  = receiptkey.ErrKey     // no ReceiptKey, or not the one of the receipt
	ErrUnavailable = driver.ErrUnavailable // the backend did not answer; see driver.MayHaveCharged
)

var errSettled = errors.New("throttler: refunded or settled before")
