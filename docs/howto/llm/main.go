// Command llm limits the requests, parallel answers and tokens of an LLM gateway.
package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

var (
	requests = &throttler.Policy{Name: "requests", Limits: []throttler.Limit{
		{Quota: 60, Window: time.Minute}, {Quota: 4, Window: 30 * time.Second, Algorithm: quota.InFlight}}}
	orgTokens = &throttler.Policy{Name: "org-tokens", Unit: quota.Tokens, Limits: []throttler.Limit{
		{Quota: 10_000, Window: time.Minute}, {Quota: 2_000_000, Calendar: quota.Calendar{Period: quota.Month}}}}
	userTokens = &throttler.Policy{Name: "user-tokens", Unit: quota.Tokens, Limits: []throttler.Limit{{Quota: 1000, Window: time.Minute}}}
)

// newGateway returns a handler that reserves an estimate and a place, and calls answer: a model,
// which sends the receipt to the worker with the tokens used, also if the client hangs up.
func newGateway(t *throttler.Throttler, answer func(w http.ResponseWriter, r *http.Request, text, receipt string)) (http.Handler, error) {
	gateway := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		org, user := r.Header.Get("X-Org"), r.Header.Get("X-User")           // from your authentication
		estimate := func(p *throttler.Policy, key string) throttler.Charge { // a capped charge waits for at most a full quota
			return throttler.Charge{Policy: p, Key: key, Cost: int64(len(text)/4 + 256), Mode: quota.Capped}.Within(org)
		}
		if middleware.Take(w, r, requests.Charge(org), estimate(orgTokens, org), estimate(userTokens, user)) {
			receipt, _ := middleware.Receipt(r) // none in an outage: nothing is settled then
			answer(w, r, string(text), receipt)
		}
	})
	limit, err := middleware.New(t, middleware.InHandler(), &middleware.Options{Dialect: middleware.OpenAI{}})
	if err != nil {
		return nil, err
	}
	return limit(gateway), nil
}

func main() {
	t, bills := throttler.New(memorybackend.NewDefault(), &throttler.Options{ReceiptKey: []byte(os.Getenv("RECEIPT_KEY"))}), make(chan bill, 100)
	go work(t, bills)
	h, err := newGateway(t, func(_ http.ResponseWriter, _ *http.Request, _, receipt string) { bills <- bill{receipt, 42} })
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", h))
}
