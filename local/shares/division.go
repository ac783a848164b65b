package shares

import "github.com/weir-go/weir/local/shares/internal/division"

// The parts of a division that programs name. The protocol is in package division, which is
// internal.
type (
	// List is the list of members, and its epoch.
	List = division.List

	// Transport sends messages to other members.
	Transport = division.Transport
)

// Bounds and defaults.
const (
	DefaultRefresh = division.DefaultRefresh
	MaxMembers     = division.MaxMembers // on a List
	MaxMessage     = division.MaxMessage // bytes that a Transport sends
)
