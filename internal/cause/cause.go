// Package cause turns an error into an observe.Failed, without addresses.
package cause

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Event returns the event of err, a failure of a request for charges.
func Event(err error, charges []quota.Charge, result observe.Result) observe.Failed {
	e := observe.Failed{Cause: Class(err), Result: result}
	var u *driver.UnavailableError
	if errors.As(err, &u) {
		e.Backend, e.Shard = u.Backend, u.Shard
	}
	if len(charges) > 0 && charges[0].Policy != nil {
		e.Policy = charges[0].Policy.Name
	}
	if e.Cause == observe.CauseInvalid { // the text contains no address
		e.Detail = err.Error()
	}
	return e
}

// Class returns the class of err, never a text that contains addresses: the log has a line for
// each class.
func Class(err error) string {
	var dns *net.DNSError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, invalid.Err):
		return observe.CauseInvalid
	case errors.Is(err, driver.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, breaker.ErrOpen):
		return "breaker open"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "deadline exceeded"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &dns):
		return "name not resolved"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return "connection lost"
	}
	if word := replyPrefix(err); word != "" {
		return word
	}
	return "other"
}

// replyPrefix returns the word that an error reply of Redis or Memcached begins
// with, such as READONLY or SERVER_ERROR, or "".
func replyPrefix(err error) string {
	switch e := err.(type) { //nolint:errorlint // it walks the tree
	case interface{ Unwrap() error }:
		return replyPrefix(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if word := replyPrefix(inner); word != "" {
				return word
			}
		}
		return ""
	case nil:
		return ""
	}
	word, _, _ := strings.Cut(err.Error(), " ")
	if len(word) < 2 || len(word) > 24 || strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return ""
	}
	return word
}
