package driver_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// The end of the server's time is not the caller's, whichever ends first.
func TestServerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caller, leave := context.WithCancel(t.Context())
		defer leave()
		ctx, cancel := driver.WithServerTime(caller, time.Second)
		defer cancel()
		began := time.Now()
		if end, of, ok := driver.ServerTime(ctx, began); !ok || !end.Equal(began.Add(time.Second)) || of != caller {
			t.Errorf("ends at %v, %v; want a second after %v, and the caller's context", end, ok, began)
		}
		if _, of, ok := driver.ServerTime(caller, began); ok || of != caller {
			t.Error("a context without a server's time has one")
		}
		<-ctx.Done()
		if !driver.ServerTimeOver(ctx) || driver.Ended(ctx) != nil {
			t.Errorf("after the server's time: over %v, ended %v; want true, nil", driver.ServerTimeOver(ctx), driver.Ended(ctx))
		}

		other, cancelOther := driver.WithServerTime(caller, time.Second)
		defer cancelOther()
		leave()
		if driver.ServerTimeOver(other) || !errors.Is(driver.Ended(other), context.Canceled) {
			t.Errorf("after the caller left: over %v, ended %v; want false, canceled", driver.ServerTimeOver(other), driver.Ended(other))
		}
	})
}
