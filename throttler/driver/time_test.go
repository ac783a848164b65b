package driver_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// The end of the server's time is distinct from the caller's, whichever comes first.
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

// A context without a waiter needs no timer, and returns the same errors as with a timer.
func TestServerTimeOfWhoDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caller, leave := context.WithCancelCause(t.Context())
		ctx, cancel := driver.WithServerTime(caller, time.Second)
		defer cancel()
		if err := ctx.Err(); err != nil {
			t.Errorf("at its beginning: %v", err)
		}
		time.Sleep(time.Second)
		if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) || !driver.ServerTimeOver(ctx) {
			t.Errorf("after its time: %v, over %v; want context.DeadlineExceeded, true", err, driver.ServerTimeOver(ctx))
		}

		canceled, cancel := driver.WithServerTime(caller, time.Second)
		cancel()
		if err := canceled.Err(); !errors.Is(err, context.Canceled) || driver.ServerTimeOver(canceled) {
			t.Errorf("canceled: %v, over %v; want context.Canceled, false", err, driver.ServerTimeOver(canceled))
		}
		<-canceled.Done()

		why := errors.New("why")
		left, cancel := driver.WithServerTime(caller, time.Second)
		defer cancel()
		child, cancelChild := context.WithCancel(left)
		defer cancelChild()
		leave(why)
		<-child.Done()
		if err := left.Err(); !errors.Is(err, context.Canceled) || !errors.Is(context.Cause(left), why) || !errors.Is(context.Cause(child), why) {
			t.Errorf("after the caller left: %v because of %v, its child because of %v", err, context.Cause(left), context.Cause(child))
		}
	})
}
