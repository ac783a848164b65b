package shares

import (
	"time"

	"github.com/weir-go/weir/fleet/shares/internal/division"
)

// The parts of a division that programs name; package division, which is internal, has
// the protocol.
type (
	// List is the list of members, and its epoch.
	List = division.List

	// Transport sends messages to other members.
	Transport = division.Transport

	// Divide makes shares of what members were asked for.
	Divide = division.Divide

	// Report is what a Divide gets of one member.
	Report = division.Report
)

// Bounds and defaults.
const (
	DefaultRefresh = division.DefaultRefresh
	MaxMembers     = division.MaxMembers // on a List
	MaxMessage     = division.MaxMessage // bytes that a Transport sends
)

// Proportional gives each member its part of what all were asked for.
func Proportional(total int64, reports []Report) []float64 {
	return division.Proportional(total, reports)
}

// FlowProportional returns a Divide for windows of that length, where many clients share
// one key.
func FlowProportional(window time.Duration) Divide { return division.FlowProportional(window) }
