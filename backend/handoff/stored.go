package handoff

import (
	"encoding/binary"
	"errors"

	"github.com/weir-go/weir/throttler/algorithm"
)

// Stored is the value that a backend keeps for one count: its state and, once the count has
// moved, a claim in front of it. The claim's stored form is
//
//	1  8 if the count is here, 9 if it has left
//	6  version
//	6  expires at
//	6  backend it left for, if it has left
//	6  version of the move that released it, if it has left
//
// No state begins with an 8 or a 9. The state's forms are drawn in throttler/algorithm/encode.go.
type Stored struct {
	Claim *Claim // nil if the count never moved
	State algorithm.State

	// Err is not nil if the value is unreadable, and says why. Then a reset replaces it, and
	// other decisions fail with Err.
	Err error
}

// Claim says which version placed a count, and where.
//
// Claims expire by the backend's clock, in ms. A decision's now may step, and that must not
// undo a move that other processes know of.
type Claim struct {
	Version   int64
	ExpiresAt int64     // by the backend's clock
	LeftFor   BackendID // the backend the count was released to; 0 if it is here

	// ReleaseVersion is the version of the move that released the count, and so the age of the
	// state kept here; 0 if no state was kept. Version is newer than ReleaseVersion if the
	// count was requested again later.
	ReleaseVersion int64
}

// A claim's first byte, and its size. The Redis scripts use the same.
const (
	claimHere      = 8
	claimLeft      = 9
	claimHereBytes = 1 + 2*6
	claimLeftBytes = 1 + 4*6
)

var errMalformed = errors.New("handoff: not a stored count: something else wrote it")

// Append appends the stored form of s to b and returns it.
func (s *Stored) Append(b []byte) []byte {
	if c := s.Claim; c != nil {
		first := byte(claimHere)
		if c.LeftFor != 0 {
			first = claimLeft
		}
		b = append(b, first)
		b = algorithm.AppendUint(b, 6, c.Version)
		b = algorithm.AppendUint(b, 6, c.ExpiresAt)
		if c.LeftFor != 0 {
			b = algorithm.AppendUint(b, 6, int64(c.LeftFor))
			b = algorithm.AppendUint(b, 6, c.ReleaseVersion)
		}
	}
	return s.State.Append(b)
}

// Parse parses the stored form b. It fails if b is malformed.
func Parse(b []byte) (Stored, error) {
	var s Stored
	err := s.Load(b)
	return s, err
}

// Load parses the stored form b into s. It reuses the memory of s.State, which must not be
// shared. If it fails, s is invalid.
func (s *Stored) Load(b []byte) error {
	s.Claim = nil
	if len(b) > 0 && (b[0] == claimHere || b[0] == claimLeft) {
		released := b[0] == claimLeft
		size := claimHereBytes
		if released {
			size = claimLeftBytes
		}
		if len(b) < size {
			return errMalformed
		}
		c := &Claim{Version: uint48(b[1:]), ExpiresAt: uint48(b[7:])}
		if released {
			c.LeftFor, c.ReleaseVersion = BackendID(uint48(b[13:])), uint48(b[19:])
		}
		if c.Version == 0 || released && c.LeftFor == 0 {
			return errMalformed
		}
		s.Claim, b = c, b[size:]
	}
	return s.State.Load(b)
}

// CutFront cuts a claim of a count that is here, and the trace of a reset, off the front of a
// script's reply about the count. It returns the reset's generation, or 0, and what follows.
func CutFront(b []byte) (generation uint32, remainder []byte) {
	if len(b) >= claimHereBytes && b[0] == claimHere {
		b = b[claimHereBytes:]
	}
	return algorithm.CutReset(b)
}

func uint48(b []byte) int64 {
	return int64(binary.BigEndian.Uint16(b))<<32 | int64(binary.BigEndian.Uint32(b[2:]))
}

// Life returns for how many ms the state or the claim of s is needed. now is the decision's,
// clock the backend's.
func (s *Stored) Life(now, clock int64) int64 {
	life := s.State.Life(now)
	if s.Claim != nil {
		life = max(life, s.Claim.ExpiresAt-clock)
	}
	return life
}

func (s *Stored) hasLeft() bool { return s.Claim != nil && s.Claim.LeftFor != 0 }

// valid returns s without its claim if the claim has expired, or nil if the expired
// claim says that the count left.
func (s *Stored) valid(clock int64) *Stored {
	if s == nil || s.Claim == nil || s.Claim.ExpiresAt > clock {
		return s
	}
	if s.hasLeft() {
		return nil
	}
	s.Claim = nil
	return s
}

// present returns s for a backend that moves counts: nil also if s has expired and has no
// claim, because the count may have started again elsewhere.
func (s *Stored) present(now, clock int64) *Stored {
	s = s.valid(clock)
	if s != nil && s.Claim == nil && s.State.ResetAt(now) <= now {
		return nil
	}
	return s
}

func (c *Claim) location() Location { return Location{Owner: c.LeftFor, Version: c.Version} }

// mayMoveTo reports whether a count that has left may arrive at backend in a move of
// that version.
func (c *Claim) mayMoveTo(version int64, backend BackendID) bool {
	return c.Version < version || c.Version == version && c.LeftFor == backend
}
