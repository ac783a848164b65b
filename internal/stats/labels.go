package stats

import "strings"

// Others is the label of all values that have no series.
const Others = "(others)"

// Label returns the first 200 bytes of s, in valid UTF-8, for a label or an attribute: s may be
// the name of a policy that is refused as invalid.
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
