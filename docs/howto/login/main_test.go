package main

import (
	"fmt"
	"log"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

func Example() {
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(time.Unix(1_900_000_000, 0))})
	h, err := newServer(t, func(_, password string) bool { return password == "secret" })
	if err != nil {
		log.Fatal(err)
	}
	var seen []string
	try := func(address, account, password string) {
		form := url.Values{"account": {account}, "password": {password}}
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr = address + ":1"
		h.ServeHTTP(w, r)
		seen = append(seen, fmt.Sprint(w.Code, w.Header().Get("X-RateLimit-Limit")))
	}
	for range 4 {
		try("192.0.2.1", "alice", "guess")
	}
	try("192.0.2.2", "Alice", "secret")
	for range 6 {
		try("192.0.2.1", "alice", "guess")
	}
	try("192.0.2.2", "alice", "secret")
	fmt.Println(seen)
	seen = nil
	for i := range 13 {
		try("192.0.2.1", fmt.Sprint("user", i), "guess")
	}
	fmt.Println(seen)
	// Output:
	// [401 401 401 401 200 401 401 401 401 401 429 429]
	// [401 401 401 401 401 401 401 401 401 401 401 429 429]
}
