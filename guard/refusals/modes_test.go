package refusals_test

import (
	"testing"

	"github.com/weir-go/weir/throttler/quota"
)

// A refusal in one mode is no answer in another: a Record is never refused.
func TestModesAskForThemselves(t *testing.T) {
	f := newFixture(t, nil)
	c := charge(core, "alice", 5)
	f.allowed(charge(core, "alice", 3))
	for _, m := range []quota.Mode{quota.Enforce, quota.Check} {
		c.Mode = m
		f.refused(false, c)
		f.refused(true, c)
	}
	c.Mode = quota.AtMost
	if d := f.allowed(c); d.Charges()[0].Cost != 2 {
		t.Errorf("at most 5 of 2: %d", d.Charges()[0].Cost)
	}
	f.refused(false, c)
	f.refused(true, c)
	c.Mode = quota.Record
	for range 2 {
		f.allowed(c)
	}
	c.Mode = quota.AtMost
	f.refused(true, c) // as before the record, until the refusal is MaxAge old
}
