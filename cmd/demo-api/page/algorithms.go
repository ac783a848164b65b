package page

import (
	"context"
	"net/http"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// The limit of each algorithm, as in the picture of docs/start/algorithms.md.
const (
	perWindow = 10
	window    = 10 * time.Second
)

// algorithms decides the same requests by each algorithm. The counts live in this process,
// whatever the API's backend is, because not all backends support all algorithms.
type algorithms struct {
	caller    middleware.Key
	throttler *throttler.Throttler
	policies  []*throttler.Policy
}

func newAlgorithms(caller middleware.Key) *algorithms {
	a := &algorithms{caller: caller, throttler: throttler.New(memorybackend.NewDefault(), nil)}
	for _, algorithm := range quota.Algorithms() {
		if algorithm.Holds() { // the requests here are over at once
			continue
		}
		a.policies = append(a.policies, &throttler.Policy{
			Name:   algorithm.String(),
			Limits: []throttler.Limit{{Quota: perWindow, Window: window, Algorithm: algorithm}},
		})
	}
	return a
}

type algorithmsAnswer struct {
	Limit      string            `json:"limit"`
	Quota      int64             `json:"quota"`
	Algorithms []algorithmAnswer `json:"algorithms"`
}

type algorithmAnswer struct {
	Algorithm string `json:"algorithm"`
	Allowed   bool   `json:"allowed"`
	Used      int64  `json:"used"`
	StartIn   int64  `json:"start_in_ms"` // of a leaky bucket; otherwise 0
}

// get answers with the used units, and post decides one request by each algorithm. A request
// that would have to wait for its start doesn't wait: the answer says when it may start.

func (a *algorithms) get(w http.ResponseWriter, r *http.Request)  { a.answer(w, r, a.throttler.Peek) }
func (a *algorithms) post(w http.ResponseWriter, r *http.Request) { a.answer(w, r, a.throttler.Take) }

func (a *algorithms) answer(w http.ResponseWriter, r *http.Request, decide func(context.Context, ...throttler.Charge) (throttler.Decision, error)) {
	key, _ := a.caller.Of(r) // callers without a key share a count
	answer := algorithmsAnswer{Limit: textOf(quota.Limit{Quota: perWindow, Window: window}), Quota: perWindow}
	for _, p := range a.policies {
		d, err := decide(r.Context(), p.Charge(key))
		if err != nil { // the request has ended
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		answer.Algorithms = append(answer.Algorithms, algorithmAnswer{
			Algorithm: p.Name, Allowed: d.Allowed, Used: d.Limit(0).Used, StartIn: d.StartAt().Sub(d.At()).Milliseconds(),
		})
	}
	writeJSON(w, answer)
}
