package fallback_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// slow is a backend that needs some time for each take.
type slow struct {
	driver.Backend
	takes time.Duration
}

func (s slow) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	select {
	case <-time.After(s.takes):
		return s.Backend.Take(ctx, r)
	case <-ctx.Done():
		return driver.Decision{}, &driver.UnavailableError{Backend: "slow", Err: ctx.Err()}
	}
}

// A backend that answers later than decisions need it counts as not answering: after OpenFor,
// Open closes.
func TestSlowBackendDoesNotAnswer(t *testing.T) {
	for _, test := range []struct {
		takes time.Duration
		want  error
	}{
		{100 * time.Millisecond, driver.ErrFailClosed},
		{40 * time.Millisecond, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, slow{memorybackend.NewDefault(), test.takes}, &fallback.Options{OnFailure: fallback.Open, OpenFor: 5 * time.Second})
			th := throttler.New(b, nil)
			p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 1 << 20, Window: time.Hour}}}
			var err error
			for start := time.Now(); time.Since(start) < 10*time.Second; {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				_, err = th.Take(ctx, p.Charge("alice"))
				cancel()
				time.Sleep(10 * time.Millisecond)
			}
			if !errors.Is(err, test.want) {
				t.Errorf("takes of %v, after 10 s: %v, want %v", test.takes, err, test.want)
			}
		})
	}
}
