package fallback_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// late is an error of a call with an unknown outcome. Whether it was sent is asked for after the
// outage that it began has ended.
type late struct{ error }

func (l late) Is(target error) bool {
	if target == driver.ErrNotSent {
		time.Sleep(time.Minute)
	}
	return target == driver.ErrUnavailable
}

// once is a backend that charges, and then loses the first reply.
type once struct {
	driver.Backend
	calls int
}

func (o *once) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := o.Backend.Take(ctx, r)
	if o.calls++; o.calls == 1 {
		return driver.Decision{}, late{io.EOF}
	}
	return d, err
}

// A take with an unknown outcome is not sent again, even if the process stops until the
// outage has ended.
func TestAStallAfterAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &once{Backend: memorybackend.NewDefault()}
		th := throttler.New(open(t, backend, &fallback.Options{OnFailure: fallback.Local, Processes: 1}), nil)
		d, err := th.Take(t.Context(), core.Charge("alice"))
		if err != nil || !d.Allowed || !d.Degraded || backend.calls != 1 {
			t.Errorf("allowed %v, degraded %v, %v, after %d calls; want a local decision after one", d.Allowed, d.Degraded, err, backend.calls)
		}
	})
}
