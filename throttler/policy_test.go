package throttler

import (
	"errors"
	"testing"
	"time"
)

// A policy is validated once, and a copy of it again: what differs may be wrong.
func TestCopiesOfPoliciesAreValidated(t *testing.T) {
	p := &Policy{Name: "core", Limits: []Limit{{Quota: 1, Window: time.Hour}}}
	for range 2 {
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	wrong := new(Policy)
	wrong.Name, wrong.Limits = p.Name, nil
	wrong.valid.Store(p.valid.Load()) // as an assignment would, which vet reports
	if err := wrong.Validate(); !errors.Is(err, ErrInvalid) {
		t.Errorf("error %v for a policy without limits, copied from a valid one; want ErrInvalid", err)
	}
}
