package middleware

import (
	"errors"

	"github.com/weir-go/weir/internal/cause"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// failure is something that went wrong with one request.
type failure struct {
	err     error
	charges []throttler.Charge
	result  observe.Result
}

// event returns the observer's event of f.
func (f *failure) event() observe.Failed {
	e := observe.Failed{Cause: cause.Of(f.err), Result: f.result}
	var u *driver.UnavailableError
	if errors.As(f.err, &u) {
		e.Backend, e.Shard = u.Backend, u.Shard
	}
	if len(f.charges) > 0 && f.charges[0].Policy != nil {
		e.Policy = f.charges[0].Policy.Name
	}
	tooLate := errors.Is(f.err, errTooLate)
	if tooLate {
		e.Cause = "write timeout"
	}
	if tooLate || errors.Is(f.err, throttler.ErrInvalid) { // no address is in them
		e.Detail = f.err.Error()
	}
	return e
}
