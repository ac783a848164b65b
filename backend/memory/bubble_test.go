package memorybackend_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// In a bubble of testing/synctest it is the year 2000, long before the process
// began. Claims expire there too.
func TestClaimsExpireInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memorybackend.NewDefault()
		here, p := handoff.IDOf("here"), &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Second}}}
		take := func(arrivals ...handoff.Arrival) error {
			c := p.Charge("alice")
			c.Partition = c.Key
			_, err := b.TakeAt(t.Context(), driver.NewRequest(time.Now().UnixMilli(), c),
				&handoff.Placement{Backend: here, Version: 1, Keep: time.Minute, Arrivals: arrivals})
			return err
		}
		if err := take(handoff.Arrival{Due: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if err := take(); err != nil {
			t.Errorf("under its claim: %v", err)
		}
		time.Sleep(time.Hour)
		if err := take(); !errors.As(err, new(*handoff.ElsewhereError)) {
			t.Errorf("an hour after its claim: %v; want the count missing", err)
		}
	})
}
