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

func Example() {
	clk := clock.NewManual(time.Unix(1_900_000_000, 0))
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clk, ReceiptKey: []byte("from the secrets of the deployment")})
	var tokens int64
	var receipt string
	h, err := newServer(t, func(http.ResponseWriter, *http.Request, string) int64 { return tokens }, func(text string) { receipt = text })
	if err != nil {
		log.Fatal(err)
	}
	ask := func(ctx context.Context, text string) {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(text))
		r.Header.Set("X-Org", "acme")
		r.Header.Set("X-User", "alice")
		h.ServeHTTP(w, r)
		fmt.Printf("%d %q", w.Code, w.Header().Get("Retry-After"))
		for _, p := range []*throttler.Policy{requests, orgTokens, userTokens} {
			key := "acme"
			if p == userTokens {
				key = "alice"
			}
			d, err := t.Peek(ctx, p.Charge(key).Within("acme"))
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(" ", p.Name, " ", d.Limit(0).Used)
		}
		fmt.Println()
	}
	tokens = 300
	ask(context.Background(), "short")
	tokens = -1
	ask(context.Background(), "short")
	d, err := t.Open(receipt)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := t.Settle(context.Background(), d, 1, 500, 500); err != nil {
		log.Fatal(err)
	}
	tokens = 300
	ask(context.Background(), strings.Repeat("long ", 2000))
	clk.Advance(time.Minute)
	ask(context.Background(), strings.Repeat("long ", 2000))
	// Output:
	// 200 "" requests 1 org-tokens 300 user-tokens 300
	// 200 "" requests 2 org-tokens 557 user-tokens 557
	// 429 "60" requests 2 org-tokens 800 user-tokens 800
	// 200 "" requests 1 org-tokens 300 user-tokens 300
}
