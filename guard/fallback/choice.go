package fallback

import (
	"fmt"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/quota"
)

// Choice says how to decide while the backend doesn't answer. A greater choice is stricter.
type Choice uint8

const (
	// Open allows everything and charges nothing. The decision is about no charges.
	Open Choice = iota

	// Local decides by this process's share of each quota. A charge that fits a quota
	// but not the share fails as under Closed.
	Local

	// Closed allows nothing: decisions fail with an error that wraps
	// driver.ErrFailClosed.
	Closed
)

var choiceNames = [...]string{"open", "local", "closed"}

// String returns "open", "local" or "closed".
func (c Choice) String() string {
	if int(c) < len(choiceNames) {
		return choiceNames[c]
	}
	return fmt.Sprintf("Choice(%d)", uint8(c))
}

// MarshalText returns c's String. If c is not a choice, the error wraps quota.ErrInvalid.
func (c Choice) MarshalText() ([]byte, error) {
	return []byte(c.String()), new(Choice).UnmarshalText([]byte(c.String()))
}

// UnmarshalText sets c to the choice of that name: "open", "local" or "closed".
func (c *Choice) UnmarshalText(text []byte) error {
	i := slices.Index(choiceNames[:], string(text))
	if i < 0 {
		return invalid.Errorf("fallback: choice is %q; it must be one of %q", text, choiceNames)
	}
	*c = Choice(i)
	return nil
}

// of returns the choice for the policy of that name.
func (b *Backend) of(policy string) Choice {
	if choice, ok := b.policies[policy]; ok {
		return choice
	}
	return b.onFailure
}

// choiceOf returns the strictest choice of charges, and the policy that makes it.
func (b *Backend) choiceOf(charges []quota.Charge) (strictest Choice, policy string) {
	for i := range charges {
		name := charges[i].Policy.Name
		if choice := b.of(name); i == 0 || choice > strictest {
			strictest, policy = choice, name
		}
	}
	return strictest, policy
}
