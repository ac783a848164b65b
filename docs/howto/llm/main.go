// Command llm limits the requests and tokens of an LLM gateway.
package main

import (
	"io"
	"log"
	"net/http"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

var (
	requests  = &throttler.Policy{Name: "requests", Limits: []throttler.Limit{{Quota: 60, Window: time.Minute}}}
	orgTokens = &throttler.Policy{Name: "org-tokens", Unit: quota.Tokens, Limits: []throttler.Limit{
		{Quota: 10_000, Window: time.Minute}, {Quota: 2_000_000, Calendar: quota.Calendar{Period: quota.Month}}}}
	userTokens = &throttler.Policy{Name: "user-tokens", Unit: quota.Tokens, Limits: []throttler.Limit{{Quota: 1000, Window: time.Minute}}}
)

// newServer returns a gateway. The model answers until the client hangs up, and returns the
// tokens used, or -1 if the process that gets the receipt will settle them.
func newServer(t *throttler.Throttler, answer func(w http.ResponseWriter, r *http.Request, text string) int64, send func(receipt string)) (http.Handler, error) {
	gateway := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		org, user := r.Header.Get("X-Org"), r.Header.Get("X-User")        // from your authentication
		inOrg := func(p *throttler.Policy, key string) throttler.Charge { // a capped charge waits for at most a full quota
			return throttler.Charge{Policy: p, Key: key, Cost: int64(len(text)/4 + 256), Mode: quota.Capped}.Within(org)
		}
		if !middleware.Take(w, r, requests.Charge(org), inOrg(orgTokens, org), inOrg(userTokens, user)) {
			return
		}
		d, ok := middleware.FromContext(r.Context())
		if tokens := answer(w, r, string(text)); tokens >= 0 {
			_ = middleware.SetCostOf(r, "org-tokens", tokens) // also if the client has hung up
			_ = middleware.SetCostOf(r, "user-tokens", tokens)
		} else if receipt, err := t.Receipt(d); ok && err == nil {
			send(receipt)
		}
	})
	limit, err := middleware.New(t, middleware.InHandler(), &middleware.Options{Dialect: middleware.OpenAI{}})
	if err != nil {
		return nil, err
	}
	return limit(gateway), nil
}

func main() {
	h, err := newServer(throttler.New(memorybackend.NewDefault(), nil), func(http.ResponseWriter, *http.Request, string) int64 { return 42 }, nil)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", h))
}
