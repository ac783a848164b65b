package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

// Example runs the gateway and a worker of another process, before and after an answer ends.
func Example() {
	ctx, clk, store := context.Background(), clock.NewManual(time.Unix(1_900_000_000, 0)), memorybackend.NewDefault()
	options := &throttler.Options{Clock: clk, ReceiptKey: []byte("from the secrets of the deployment")}
	gateway, worker := throttler.New(store, options), throttler.New(store, options)
	var answer func(receipt string)
	h, err := newGateway(gateway, func(_ http.ResponseWriter, _ *http.Request, _, receipt string) { answer(receipt) })
	if err != nil {
		log.Fatal(err)
	}
	show := func(what string) {
		fmt.Print(what, ":")
		for _, c := range []throttler.Charge{requests.Charge("acme"), orgTokens.Charge("acme"), userTokens.Charge("alice").Within("acme")} {
			d, err := gateway.Peek(ctx, c)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(" ", c.Policy.Name)
			for l := range c.Policy.Limits {
				fmt.Print(" ", d.Limit(l).Used)
			}
		}
		fmt.Println()
	}
	ask := func(text string) {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(text))
		r.Header.Set("X-Org", "acme")
		r.Header.Set("X-User", "alice")
		h.ServeHTTP(w, r)
		show(fmt.Sprintf("%d %q", w.Code, w.Header().Get("Retry-After")))
	}
	deliver := func(b bill) {
		if err := settle(ctx, worker, b); err != nil {
			log.Fatal(err)
		}
		show("settled")
	}

	var late bill
	answer = func(receipt string) {
		late = bill{receipt, 300}
		show("in flight")
	}
	ask("short")
	deliver(late)
	deliver(late)

	answer = func(receipt string) { deliver(bill{receipt, 500}) }
	ask("short")
	ask(strings.Repeat("long ", 2000))
	clk.Advance(time.Minute)
	ask(strings.Repeat("long ", 2000))
	deliver(late)
	// Output:
	// in flight: requests 1 1 org-tokens 257 257 user-tokens 257
	// 200 "": requests 1 0 org-tokens 257 257 user-tokens 257
	// settled: requests 1 0 org-tokens 300 300 user-tokens 300
	// settled: requests 1 0 org-tokens 300 300 user-tokens 300
	// settled: requests 2 1 org-tokens 800 800 user-tokens 800
	// 200 "": requests 2 0 org-tokens 800 800 user-tokens 800
	// 429 "60": requests 2 0 org-tokens 800 800 user-tokens 800
	// settled: requests 1 1 org-tokens 500 1300 user-tokens 500
	// 200 "": requests 1 0 org-tokens 500 1300 user-tokens 500
	// settled: requests 1 0 org-tokens 500 1300 user-tokens 500
}
