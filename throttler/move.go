package throttler

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"
)

// Mover is a Backend whose counts can move to other backends and come from
// them, in the middle of a window, with what was used and its reset-at. Package
// rollout drives it; nobody else needs it.
//
// A count is in one place at a time. Who wants it elsewhere has the backend
// that holds it release it: from that instant on, that backend answers
// decisions about the count with an [ElsewhereError]. What it released arrives
// with the first decision at the new place. Both steps are atomic, so that a
// charge is made before the count leaves, and moves with it, or afterwards and
// at the new place.
//
// Processes learn at different moments that counts are to move. Each move
// carries the version of the view by which it is made: a number that rises with
// time, and that no two views that differ about a count have in common. A place
// that a later view has chosen is not left by an earlier one.
type Mover interface {
	Backend

	// Release lets counts go, and returns what became of each of r.Charges.
	Release(ctx context.Context, r Release) ([]Released, error)
}

// Place names a backend among those that counts move between.
type Place uint64 // 48 bits: Redis' Lua has doubles for numbers

// PlaceOf returns the place of the backend of that name. It is never 0.
func PlaceOf(name string) Place {
	sum := sha256.Sum256([]byte(name))
	place := Place(1)
	for _, b := range sum[:5] {
		place = place<<8 | Place(b)
	}
	return place
}

// Home goes with a decision while its counts may be in another place.
type Home struct {
	// Place is the backend that is asked.
	Place Place

	// Required says that a count that is not there may be elsewhere: it is not
	// begun, and the decision fails with an [ElsewhereError].
	Required bool

	// Live says that a count that is over is as good as none to Required.
	Live bool

	// Arrivals are counts that were released to this place: none, or one for
	// each charge. A count that is there already is not replaced, and one of
	// which the backend itself kept a later state goes on from that.
	Arrivals []Arrival

	// Version is that of the view by which Arrivals came.
	Version int64

	// Keep is how long the backend remembers the version of an arrival.
	Keep time.Duration
}

// Arrival is one count that another backend released.
type Arrival struct {
	Due    bool   // false: this charge's count does not arrive
	State  []byte // stored form; empty if the count is new
	Parted int64  // version by which State was released; 0 if the count is new
}

// Release asks a backend to let counts go.
type Release struct {
	Now     time.Time
	Charges []Charge // of one partition; their costs do not matter

	// To is where the counts go.
	To Place

	// Version is that of the view by which they go, 1 to 2^48-1. Counts that a
	// later view has placed stay.
	Version int64

	// Keep is how long at least the backend remembers that they are gone, and
	// what they were: longer than processes may take to learn of a move.
	Keep time.Duration

	// Look says that nothing is to change: only to tell.
	Look bool
}

// Released is what became of one count that was asked for.
type Released struct {
	// Stays says that it was not released: a later view has placed it. Place
	// and Version say where, and by which view.
	Stays   bool
	Place   Place // 0: at the backend that was asked
	Version int64

	// State is the count in its stored form, nil if there is none. If the count
	// had Left before, it is what was kept of it then.
	State []byte
	Left  bool

	// Parted is the version by which the count left, now or before.
	Parted int64
}

// ElsewhereError says that counts of a decision are not, or may not be, where
// they were looked for. Nothing was charged.
type ElsewhereError struct {
	Counts []Whereabouts // one for each charge
}

// Whereabouts says where one count is. The zero value: here.
type Whereabouts struct {
	Missing bool  // it was Required, and there is none
	Place   Place // where it went, or 0
	Version int64 // of the view by which it was to go there
}

func (e *ElsewhereError) Error() string {
	missing, moved := 0, 0
	for _, w := range e.Counts {
		if w.Missing {
			missing++
		}
		if w.Place != 0 {
			moved++
		}
	}
	return fmt.Sprintf("of %d counts, %d are missing and %d have moved to another backend", len(e.Counts), missing, moved)
}

// Unwrap returns ErrUnavailable: to who does not move counts, that is what a
// count elsewhere means.
func (e *ElsewhereError) Unwrap() error { return ErrUnavailable }
