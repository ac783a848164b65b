package division

import (
	"context"
	"time"

	"github.com/weir-go/weir/clock"
)

// Defaults and bounds.
const (
	DefaultRefresh = time.Second
	DefaultKeys    = 8
	MaxKeys        = 64   // of Options.Keys
	MaxMembers     = 1024 // on a list
	MaxQuotas      = 256
	MaxMessage     = 4 << 20 // bytes of a message

	// Grace is the time, in refreshes, from a list that leaves a member out to the next
	// division: the member hears of the list and drops its units.
	Grace = 10
)

// A Quota is a number of units to divide.
type Quota struct {
	// Name identifies the quota: all processes that know it divide it.
	Name string

	// Total is the number of units to divide, from 1 to 2^40. If processes have different
	// totals, the lowest is divided.
	Total int64

	// Step is the number of units that a member needs to admit anything. Each member has at
	// least as many, and a twentieth of the even share, if there are enough. If zero, 1.
	Step int64

	// Demand returns the recent demand at this process, including refused requests, and
	// its keys with the highest demand, at most keys of them: see [Sampler.Demand]. A
	// window of two refreshes is right. Demand is called for each round, and must not call
	// the Member. If nil, this process has no demand.
	Demand func(now time.Time, keys int) Demand
}

// Demand is the demand at a process.
type Demand struct {
	Units float64     // per second
	Keys  []KeyDemand // the most demanded, in falling order
}

// KeyDemand is the demand for one key at a process.
type KeyDemand struct {
	Key   uint64  // a hash of the key, the same in all processes; 0 is not a key
	Units float64 // per second
}

// Shares contains the units that this process may admit.
type Shares struct {
	// Valid reports whether this process holds shares. It is false after a start, until the
	// first division, and when the process has been left out of the list. Then all units
	// are zero.
	Valid bool

	// Round is the round of the division that the shares are from.
	Round uint64

	// First reports whether no member held units before that division: the whole fleet
	// starts.
	First bool

	// Quotas contains a Share for each quota, in the order that New was given.
	Quotas []Share
}

// A Share contains the units of one quota that this process may admit.
type Share struct {
	// Units is the part of the quota's Total, for each key that is not in Keys.
	Units int64

	// Keys contains the units for keys with their own division, by hash. It must not
	// be changed. It has a few hundred keys at most.
	Keys map[uint64]int64
}

// Of returns the units for the key with that hash.
func (s *Share) Of(key uint64) int64 {
	if units, ok := s.Keys[key]; ok {
		return units
	}
	return s.Units
}

// A Transport sends messages to members. Messages are at most MaxMessage bytes.
type Transport interface {
	// Send passes message to [Member.Receive] of the process named to, and returns
	// its reply. A message may be lost, repeated or late, but it must be from a
	// member: the Transport authenticates.
	Send(ctx context.Context, to string, message []byte) (reply []byte, err error)
}

// Options configures a Member. Nil and the zero value select the defaults.
type Options struct {
	// Refresh is the time between two rounds, from 10 ms to an hour. If zero,
	// DefaultRefresh. Members should have the same value. A member has a fifth of it to
	// reply, from 50 ms to a second.
	Refresh time.Duration

	// Keys is the number of keys of each quota that have their own divisions, at most
	// MaxKeys. If zero, DefaultKeys; if negative, 0. A message has up to 14 bytes for
	// each member, quota and key: with many of all three, Keys must be lower.
	Keys int

	// ListChanged is called with each list that replaces another one, from SetList or
	// from another member, one call at a time. It must not call the Member, nor change
	// the list. May be nil.
	ListChanged func(List)

	// Clock is the clock for rounds and demand. If nil, clock.System.
	Clock clock.Clock
}
