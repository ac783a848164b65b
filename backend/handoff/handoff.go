// Package handoff is the protocol that moves counts between backends in the middle of a
// window, with their used units and reset times. Package rollout drives it; a [Store] takes
// part in it. Programs with one backend do not need it.
//
// A count is in one backend at a time. A backend begins a count only after the others were
// asked to release it, or under its own claim that has not expired. To move a count, call
// Release on the backend that holds it. From then on that backend rejects decisions about the
// count with an [ElsewhereError], and the released state arrives with the first decision at
// the new backend. Both steps are atomic: a charge is made before the count leaves, and moves
// with it, or afterwards, at the new backend.
//
// Processes learn of a move at different times, so every move carries a version: a number that
// grows with time and is never shared by two conflicting moves of one count. A move with an
// older version never overrides one with a newer version.
//
// A backend keeps a [Stored] for each count: its state and, if the count has moved, a [Claim]
// in front of it. [FindAll] and [ReleaseAll] are the protocol's two steps. [Take], [Peek],
// [Settle] and [Reset] make whole decisions, for stores that keep bytes: the Redis and
// Memcached backends run these. The memory backend makes room between FindAll and the
// decision. The Redis scripts know one rule: a count behind a "here" claim is here.
package handoff

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Store is a Backend whose counts can move to other Stores and arrive from them. The methods
// of driver.Backend are for programs that move no counts: they continue from whatever state is
// stored. The methods here begin no count: they fail with an [ElsewhereError], and charge
// nothing, if a count of the decision is, or may be, in another Store. Without a Placement,
// they are the methods of driver.Backend.
type Store interface {
	driver.Backend
	driver.Health

	// TakeAt is Take under p.
	TakeAt(ctx context.Context, r driver.Request, p *Placement) (driver.Decision, error)

	// PeekAt is Peek under p. Arrivals are taken into account, and not stored.
	PeekAt(ctx context.Context, r driver.Request, p *Placement) (driver.Decision, error)

	// SettleAt is Settle under p.
	SettleAt(ctx context.Context, s driver.Settlement, p *Placement) (driver.Decision, error)

	// ResetAt is Reset under p.
	ResetAt(ctx context.Context, r driver.Request, p *Placement) error

	// Release releases counts to another Store. It returns one Released for
	// each of r.Charges.
	Release(ctx context.Context, r ReleaseRequest) ([]Released, error)
}

// BackendID identifies one of the Stores that counts move between. 0 identifies no Store.
type BackendID uint64 // 48 bits: Redis' Lua has doubles for numbers

// IDOf returns the ID of the backend with that name. It is never 0.
func IDOf(name string) BackendID {
	sum := sha256.Sum256([]byte(name))
	id := BackendID(1)
	for _, b := range sum[:5] {
		id = id<<8 | BackendID(b)
	}
	return id
}

// Placement accompanies a decision about counts that may be in another backend. A count is
// here if it is live, or under a claim that has not expired; without either it is missing, and
// only an arrival creates it.
type Placement struct {
	// Backend is the backend that decides.
	Backend BackendID

	// Arrivals holds the counts released to this backend, or to be created
	// here: empty, or one for each charge. An arrival never replaces a count
	// that is here; if this backend kept a newer state of the count, that state
	// wins.
	Arrivals []Arrival

	// Version is the version of the move that brought Arrivals.
	Version int64

	// Keep is how long the backend remembers an arrival's Version.
	Keep time.Duration
}

// Arrival is one count that another backend released.
type Arrival struct {
	// Due reports that the charge's count arrives. If false, the other fields
	// are not set.
	Due bool

	// State is the count's stored form, as [algorithm.State.Append] writes it;
	// empty if the count is new.
	State []byte

	// ReleaseVersion is the version of the move that released State; 0 if the count is new.
	ReleaseVersion int64
}

// ReleaseRequest asks a backend to release counts.
type ReleaseRequest struct {
	Now     int64          // ms since the epoch
	Charges []quota.Charge // of one partition; their costs are ignored

	// To is the backend that receives the counts.
	To BackendID

	// Version is the move's version, 1 to 2^48-1. Counts that a newer version
	// has placed are not released.
	Version int64

	// Keep is the least time that the backend remembers that the counts left, and their
	// states: longer than processes take to learn of a move.
	Keep time.Duration

	ServerTime time.Duration // as a driver.Request's

	// ReadOnly makes Release report the counts and release nothing.
	ReadOnly bool
}

// Released is the outcome of a release for one count. The zero value says that the backend has
// no such count.
type Released struct {
	// Superseded reports that the count was not released because a version that
	// is not older than the request's has placed it. Owner and Version then say
	// where, and State is nil.
	Superseded bool

	// Owner is where a superseding version placed the count; 0 is the backend
	// that was asked.
	Owner BackendID

	// Version is the superseding version.
	Version int64

	// State is the count's stored form, nil if there is no count. If
	// AlreadyReleased, it is the copy kept when the count left.
	State []byte

	// AlreadyReleased reports that the count had left before.
	AlreadyReleased bool

	// ReleaseVersion is the version of the move that released the count, now or before.
	ReleaseVersion int64
}

// ElsewhereError reports that counts of a decision are, or may be, in another
// backend. Nothing was charged.
type ElsewhereError struct {
	Counts []Location // one for each charge
}

// Location says where one count is. The zero value says that it is in the backend that was
// asked.
type Location struct {
	Missing bool      // nothing here says where it is: it is elsewhere, or new, or has not arrived because another count of the decision is elsewhere
	Owner   BackendID // the backend it was released to, or 0
	Version int64     // version of the move to Owner
}

func (e *ElsewhereError) Error() string {
	missing, moved := 0, 0
	for _, l := range e.Counts {
		if l.Missing {
			missing++
		}
		if l.Owner != 0 {
			moved++
		}
	}
	return fmt.Sprintf("of %d counts, %d are missing and %d have moved to another backend", len(e.Counts), missing, moved)
}

// Unwrap returns driver.ErrUnavailable, for callers that do not move counts.
func (e *ElsewhereError) Unwrap() error { return driver.ErrUnavailable }
