package config_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// A program with its limits and backend in a file.
func Example() {
	uses := []*throttler.Policy{{Name: "core"}} // its limits are in the file
	s, err := config.Open("testdata/weir.yaml", &config.Options{Policies: uses})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	core := middleware.Limit(s.Config.Policies["core"], middleware.ClientIP(nil))
	limit, err := middleware.New(s.Throttler, core, &middleware.Options{Deadline: s.Config.Deadline})
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	server := httptest.NewServer(limit(hello)) // http.ListenAndServe("127.0.0.1:8080", limit(hello))
	defer server.Close()

	for range 3 {
		r, err := http.Get(server.URL)
		if err != nil {
			log.Fatal(err)
		}
		r.Body.Close()
		fmt.Println(r.StatusCode, "remaining:", r.Header.Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 remaining: 1
	// 200 remaining: 0
	// 429 remaining: 0
}

// A program that Ctrl-C ends: requests in flight are answered, and then the stack closes.
func ExampleStack_Close() {
	s, err := config.Open("testdata/weir.yaml", nil)
	if err != nil {
		log.Fatal(err)
	}
	core := middleware.Limit(s.Config.Policies["core"], middleware.ClientIP(nil))
	limit, err := middleware.New(s.Throttler, core, &middleware.Options{Deadline: s.Config.Deadline})
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: limit(hello)}
	go func() {
		log.Print(server.ListenAndServe())
		stop()
	}()
	<-ctx.Done()
	stop() // a second signal ends the program at once
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(end); err != nil { // requests in flight
		log.Print(err)
	}
	if err := s.Close(); err != nil {
		log.Print(err)
	}
}

// Every mistake is reported at once.
func ExampleParse() {
	_, err := config.Parse("weir.yaml", []byte(`
backend: redis
redis: {shards: [{name: a, primary: localhost}]}
policies:
  core: {limit: 60 per 1h}
  search: 30 each 1m
`), nil)
	fmt.Println(err)
	// Output:
	// weir.yaml:3: redis.shards[0].primary is "localhost"; it must be a host and a port, such as 127.0.0.1:6379, the path of a socket, such as /run/redis.sock, or a URL, such as rediss://weir@127.0.0.1:6379/0
	// weir.yaml:5: unknown key limit; did you mean limits? The keys here are limits, unit, hidden, parent, parent_key, on_failure, consistency, was, sync, low
	// weir.yaml:6: policies.search is "30 each 1m"; it must be a quota, per, and a window, such as 10 per 1m, 10/hour, 10 per 30 days or 10 per month
}

// A program's own keys are read by the same rules.
func ExampleOptions_program() {
	own := &struct {
		Listen   config.ListenAddress
		Greeting string `is:"a text for all visitors"`
	}{Listen: "127.0.0.1:8080"}
	_, err := config.Parse("weir.yaml", []byte("greeting: hello\npolicies: {core: 60 per 1h}\n"), &config.Options{Program: own})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(own.Greeting, "on", own.Listen)
	_, err = config.Parse("weir.yaml", []byte("listen: 8080\ngreting: hello\n"), &config.Options{Program: own})
	fmt.Println(err)
	// Output:
	// hello on 127.0.0.1:8080
	// weir.yaml:1: listen is "8080"; it must be a host and a port, such as 127.0.0.1:8080
	// weir.yaml:2: unknown key greting; did you mean greeting? The keys here are listen, greeting, backend, redis, memcached, shares, seed, prefix, flags, shadow, refusal_cache, roots, policies_at, policies, dry_runs, deadline, on_failure, open_for, processes
}
