package division

import (
	"context"
	"errors"
)

// A Member is one process in the division. Its methods may be called concurrently.
type Member struct{}

// New returns a Member named self. It holds nothing and sends nothing before Run.
// self need not be on the list: it holds nothing then, until a list names it.
//
// apply is called with the shares whenever they change, one call at a time, and once
// in New. The shares are in force when it returns, so what it lowers must be lowered by
// then. It must not call the Member.
func New(self string, list List, quotas []Quota, transport Transport, apply func(Shares), o *Options) (*Member, error) {
	return nil, errors.New("to come")
}

// Run takes part in the division until ctx is done, and returns when all its goroutines
// have ended. From then on the member holds nothing. It must be called once at most.
func (m *Member) Run(ctx context.Context) error { return nil }

// Receive takes in a message and returns the reply, for the Transport's server. An error
// says why the message is not one; it has no effect then.
func (m *Member) Receive(ctx context.Context, message []byte) (reply []byte, err error) {
	return nil, nil
}

// SetList replaces the list of members, if its epoch is higher. Members pass the list
// on, so it is enough to set it at one of them. A list with a lower or equal epoch, or
// that is not valid, is an error that wraps throttler.ErrInvalid.
func (m *Member) SetList(list List) error { return nil }

// Status returns the state of the division as this member knows it.
func (m *Member) Status() Status { return Status{} }
