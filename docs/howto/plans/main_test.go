package main

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/weir-go/weir/throttler/policies"
)

func Example() {
	var table policies.Table
	file, err := policies.WatchFile(table.Source("file"), "policies.json", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	h, err := newServer(&table, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		log.Fatal(err)
	}
	get := func(token string) {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		h.ServeHTTP(w, r)
		fmt.Printf("%q %d %s/%s\n", users[token], w.Code, w.Header().Get("X-RateLimit-Used"), w.Header().Get("X-RateLimit-Limit"))
	}
	for _, token := range []string{"t1", "t2", "t3", "t4", ""} {
		get(token)
	}
	plans["subject:alice"] = "core-pro" // she has bought it
	get("t1")
	// Output:
	// "alice" 200 1/60
	// "bob" 200 1/100
	// "monitor" 200 1/9007199254740992
	// "mallory" 429 /
	// "" 200 1/60
	// "alice" 200 2/100
}
