package middleware

import "github.com/weir-go/weir/throttler/quota"

// ErrorBody is a [Dialect] of an API that has its own form of errors. Refusals and other
// errors of the middleware have that form, in JSON, unless the client prefers
// application/problem+json, or Options.Refuse writes them.
type ErrorBody interface {
	Dialect

	// ErrorBody returns the body of an error. For a refusal, unit is the unit of the limit
	// that refused; otherwise it is the zero value.
	ErrorBody(status int, unit quota.Unit, message string) []byte
}

// errorBody returns the first of t's dialects that is an ErrorBody, or nil.
func (t *throttle) errorBody() ErrorBody {
	for _, d := range t.dialects {
		if b, ok := d.(ErrorBody); ok {
			return b
		}
	}
	return nil
}
