package rls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/throttler/driver"
)

// busy is a store that charges, and calls charged before it answers.
type busy struct {
	*memorybackend.Backend
	charged func(r driver.Request) error
}

func (b *busy) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := b.Backend.Take(ctx, r)
	if err == nil {
		err = b.charged(r)
	}
	if ended := ctx.Err(); err == nil && ended != nil { // without a report of the charges
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, ended)
	}
	return d, err
}

func (b *busy) Joins(driver.Request) bool { return true }

// newBusy returns a server with a store that calls charged after it has charged.
func newBusy(t *testing.T, answers settings.Answers, charged func(driver.Request) error) *tested {
	s := newTested(t, answers, limits)
	store := &busy{memorybackend.NewDefault(), charged}
	b := New(store, clock.NewManual(t0), &Options{Answers: answers, Remote: true, Metrics: NewMetrics(prometheus.NewRegistry(), answers.Compatible)})
	b.Load(s.Set())
	return &tested{b, t, s.clock}
}

// valueOf returns the value of a counter.
func valueOf(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all[0].GetMetric()[0].GetCounter().GetValue()
}

// A call is refunded if its client has left, whatever the answer would have been.
func TestCallThatEndsChargesNothing(t *testing.T) {
	for _, deadline := range []time.Duration{0, time.Minute} {
		for _, failure := range []settings.Failure{settings.FailError, settings.FailOpen, settings.FailClosed} {
			t.Run(fmt.Sprint(failure, " ", deadline), func(t *testing.T) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if deadline > 0 {
					ctx, leave = context.WithTimeout(ctx, deadline)
					defer leave()
				}
				s := newBusy(t, settings.Answers{OnFailure: failure, Deadline: time.Minute}, func(driver.Request) error {
					leave()
					return nil
				})
				resp, err := s.ShouldRateLimit(ctx, request("minute=a | hour=a | shadow=a | q1=a"))
				if !errors.Is(ctx.Err(), context.Canceled) || err == nil {
					t.Errorf("%v; want an error", resp)
				}
				if code := status.Code(err); code != codes.Canceled {
					t.Errorf("the code is %v; want Canceled", code)
				}
				if _, err := s.ShouldRateLimit(ctx, request("minute=a")); status.Code(err) != codes.Canceled {
					t.Errorf("a call that has ended before: %v", err)
				}
				if n := valueOf(t, s.metrics.storeErrors) + valueOf(t, s.metrics.serviceErrors); n != 0 {
					t.Errorf("%v errors are counted; the store has answered", n)
				}
				s.Close()
				s.is("minute=a | hour=a | shadow=a | q1=a", "OK 1/2 50s 4/5 3590s 0/1 50s 0/1 50s")
			})
		}
	}
}

// Charges before the store went down are refunded, and the answer does not wait for that.
func TestCallThatFailsChargesNothing(t *testing.T) {
	takes, away := 0, true
	s := newBusy(t, settings.Answers{Deadline: time.Minute}, func(driver.Request) error {
		if takes++; takes == 2 && away {
			return driver.ErrUnavailable
		}
		return nil
	})
	many := "minute=a | minute=b"
	for i := range 17 {
		many += fmt.Sprint(" | hour=", i)
	}
	if got := s.ask(request(many)); !strings.Contains(got, "Unavailable") {
		t.Errorf("%s; want an error", got)
	}
	s.Close()
	away = false
	s.is("minute=a | minute=b | hour=0", "OK 1/2 50s 1/2 50s 4/5 3590s")
}

// unsettling is a store that the first settlements do not reach.
type unsettling struct {
	*memorybackend.Backend
	settlements int
}

func (u *unsettling) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if u.settlements++; u.settlements <= 3 {
		return driver.Decision{}, fmt.Errorf("%w: %w", driver.ErrUnavailable, driver.ErrNotSent)
	}
	return u.Backend.Settle(ctx, s)
}

// The charges of a call that is refused as a whole are refunded later if they can't be at once.
func TestRefusedCallChargesNothing(t *testing.T) {
	plain := newTested(t, settings.Answers{}, limits)
	store := &unsettling{Backend: memorybackend.NewDefault()}
	b := New(store, plain.clock, &Options{Metrics: NewMetrics(prometheus.NewRegistry(), false)})
	b.Load(plain.Set())
	s := &tested{b, t, plain.clock}
	s.is(
		"q1=a", "OK 0/1 50s",
		"minute=a | q1=a", "OVER 1/2 50s 0/1! 50s", // minute was charged before q1 was over
	)
	s.Close()
	if store.settlements != 4 {
		t.Errorf("%d settlements; want a fourth, because the first three were not sent", store.settlements)
	}
	s.is("minute=a", "OK 1/2 50s")
}
