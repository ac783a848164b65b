package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// Parties of the picture of a charge.
const (
	client = iota
	limits
	handler
	store
)

// charge shows the charges of a request, of a 304, of a costly request, and of one that is
// refused, as the middleware made them in memory.
func charge() *sequence {
	s := &sequence{title: "How requests are charged, 60 an hour", parties: []string{"client", "middleware", "handler", "store"}}
	t := throttler.New(&recorded{memorybackend.NewDefault(), s}, &throttler.Options{Clock: clock.NewManual(time.UnixMilli(1_900_000_800_000))})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	limit, err := middleware.New(t, middleware.Limit(core, middleware.Everyone()).CostReported(), nil)
	if err != nil {
		panic(err) // the policy is valid
	}
	serve := func(what string, does string, do http.HandlerFunc) {
		s.begin(what)
		s.say(client, limits, "GET")
		w := httptest.NewRecorder()
		limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.say(limits, handler, "serve")
			s.say(handler, limits, "%s", does)
			do(w, r)
		})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		h := w.Header()
		answer := fmt.Sprintf("%d, %s left", w.Code, h.Get("X-RateLimit-Remaining"))
		if retry := h.Get("Retry-After"); retry != "" {
			answer = fmt.Sprintf("%d, again in %s s", w.Code, retry)
		}
		s.say(limits, client, "%s", answer).bad = w.Code == http.StatusTooManyRequests
	}
	serve("A request is charged before it is served", "200", func(http.ResponseWriter, *http.Request) {})
	serve("A response that turns out to be free is refunded", "304", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	serve("What it really cost is settled", "200, cost 59", func(w http.ResponseWriter, r *http.Request) {
		if err := middleware.SetCost(r, 59); err != nil {
			panic(err) // the charge is marked CostReported
		}
		w.WriteHeader(http.StatusOK)
	})
	serve("Without room, nothing is charged, and nothing is served", "", nil)
	return s
}

// recorded is a backend that adds its requests and answers to a sequence.
type recorded struct {
	driver.Backend
	s *sequence
}

func (b *recorded) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	b.s.say(limits, store, "take %d", r.Charges()[0].Cost)
	d, err := b.Backend.Take(ctx, r)
	result := d.Results()[0]
	if d.Allowed {
		b.s.say(store, limits, "allowed: %d used", result.Used)
	} else {
		b.s.say(store, limits, "refused: %d used", result.Used).bad = true
	}
	return d, err
}

func (b *recorded) Settle(ctx context.Context, r driver.Settlement) (driver.Decision, error) {
	b.s.say(limits, store, "it cost %d, not %d", r.Costs[0], r.Charged.Charges()[0].Cost)
	d, err := b.Backend.Settle(ctx, r)
	b.s.say(store, limits, "%d used", d.Results()[0].Used)
	return d, err
}
