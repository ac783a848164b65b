package stats

import (
	"strings"

	"github.com/weir-go/weir/observe"
)

// Others is the label of what has no series of its own.
const Others = "(others)"

// Label returns s as the value of a label or an attribute: it must be UTF-8, which the name
// of a policy that is refused as invalid need not be.
func Label(s string) string {
	const longest = 200
	if len(s) > longest {
		s = s[:longest]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Role returns the label of a server's role.
func Role(replica bool) string {
	if replica {
		return "replica"
	}
	return "primary"
}

// MoveOutcomes are the labels of what became of moves. The second is of counts that begin
// again.
var MoveOutcomes = [...]string{"moved", "lost", "failed"}

// MoveOutcome returns the index of e's outcome in MoveOutcomes.
func MoveOutcome(e observe.Moved) int {
	switch {
	case e.Err != nil:
		return 2
	case e.Lost:
		return 1
	}
	return 0
}
