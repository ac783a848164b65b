package quota

import "fmt"

// Mode is how a charge is made.
type Mode uint8

const (
	// Enforce charges Cost units if they fit, and refuses if they do not.
	Enforce Mode = iota

	// Record charges Cost units, room or no room, and never refuses: it is for usage that is
	// only known afterwards. What goes beyond the capacity is a debt that later charges wait
	// out. A recorded charge does not wait for its start in a LeakyBucket.
	Record

	// Check refuses if Cost units do not fit, and charges nothing. Checks in parallel are all
	// allowed by one unit of room. The cost of the charge in the decision is 0.
	Check

	// AtMost charges as many of Cost units as fit all limits of its policy, and refuses if
	// not one does. The cost of the charge in an allowed decision is what was charged. Its
	// policy cannot have a parent.
	AtMost

	// Capped does what Enforce does, of a cost above the capacity of a limit with that
	// capacity: so an estimate that is too high waits for a full quota, and not forever. The
	// cost of the charge in the decision is the lower one, and its mode is Enforce.
	Capped
)

var modeNames = [...]string{Enforce: "enforce", Record: "record", Check: "check", AtMost: "at-most", Capped: "capped"}

// String returns the mode's name, such as "at-most".
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// Known reports whether m is one of the constants.
func (m Mode) Known() bool { return int(m) < len(modeNames) }

// Asks returns how many units a charge of cost needs room for: 0 for Record, and at most 1
// for AtMost.
func (m Mode) Asks(cost int64) int64 {
	switch m {
	case Record:
		return 0
	case AtMost:
		return min(cost, 1)
	case Enforce, Check, Capped:
	}
	return cost
}
