package driver

import (
	"errors"
	"fmt"
)

// ErrUnavailable is wrapped by errors of a backend that did not or could not answer.
// Unless the error wraps ErrNotSent too, it is unknown whether the charge was made, and
// it is not sent again: charging twice would be worse than charging once too little.
var ErrUnavailable = errors.New("backend unavailable")

// ErrNotSent is wrapped, with ErrUnavailable, by errors of a backend that could not
// answer and has sent nothing that charges or refunds: a circuit breaker is open, no
// connection could be made, a queue is full. A retry can't charge twice.
var ErrNotSent = errors.New("nothing was sent")

// ErrOverloaded is wrapped, with ErrUnavailable, by errors about decisions that this process
// did not make in time although the server answers: the process is short of CPU, or its queue
// is full. It is not an outage: a policy that is open in outages doesn't serve the request.
var ErrOverloaded = errors.New("this process is overloaded")

// MayHaveCharged reports whether a Take, a Refund or a Settle that failed with err may have
// charged or refunded units. If it reports false, no units were.
func MayHaveCharged(err error) bool {
	return errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotSent)
}

// UnavailableError is an error of one shard or server of a backend. It wraps
// ErrUnavailable and its cause.
type UnavailableError struct {
	Backend string // the package: "redisbackend"
	Shard   string // the name of the shard or server
	Err     error  // the cause; never nil
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s: shard %q: %v: %v", e.Backend, e.Shard, ErrUnavailable, e.Err)
}

// Unwrap returns ErrUnavailable and the cause.
func (e *UnavailableError) Unwrap() []error { return []error{ErrUnavailable, e.Err} }

// ErrFailClosed is wrapped, with ErrUnavailable, by errors about policies that are
// configured to allow nothing while the backend is unavailable: see package fallback.
// A caller that serves after other failures must not serve after this one.
var ErrFailClosed = errors.New("nothing is allowed until the backend answers")
