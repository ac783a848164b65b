package quota

import (
	"fmt"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
)

// Unit is the unit of a policy's quotas and costs. It changes no count and no decision, but
// the headers of some dialects show it.
type Unit uint8

// The units.
const (
	Requests     Unit = iota // the zero value
	Tokens                   // that a model reads or writes, input and output alike
	InputTokens              // that it reads
	OutputTokens             // that it writes
)

var unitNames = [...]string{Requests: "requests", Tokens: "tokens", InputTokens: "input-tokens", OutputTokens: "output-tokens"}

// String returns the unit's name, such as "input-tokens", as configuration files spell it.
func (u Unit) String() string {
	if int(u) < len(unitNames) {
		return unitNames[u]
	}
	return fmt.Sprintf("Unit(%d)", uint8(u))
}

// MarshalText returns the unit's name, or an error that wraps [ErrInvalid].
func (u Unit) MarshalText() ([]byte, error) {
	if problem := u.validate(); problem != "" {
		return nil, invalid.Errorf("quota: %s", problem)
	}
	return []byte(u.String()), nil
}

// UnmarshalText sets u to the unit of that name. The error wraps [ErrInvalid].
func (u *Unit) UnmarshalText(text []byte) error {
	if i := slices.Index(unitNames[:], string(text)); i >= 0 {
		*u = Unit(i)
		return nil
	}
	return invalid.Errorf("quota: unit is %q; it must be one of %q", text, unitNames)
}

// validate describes an error of u. It returns "" if u is valid.
func (u Unit) validate() string {
	if int(u) >= len(unitNames) {
		return fmt.Sprintf("unit is %v; it must be one of %q", u, unitNames)
	}
	return ""
}
