// Command plans serves an API whose callers have plans. The quotas are in a file.
package main

import (
	"context"
	"log"
	"net/http"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// users and plans stand for your database, by token and by key. Others have plan "", core.
var (
	users = map[string]string{"t1": "alice", "t2": "bob", "t3": "monitor", "t4": "mallory"}
	plans = map[string]string{
		"subject:bob": "core-pro", "subject:monitor": policies.Unlimited, "subject:mallory": policies.Blocked,
	}
)

// planOf returns the plan of a key. The context has the values that a middleware in front has set.
func planOf(_ context.Context, key string) string { return plans[key] }

func newServer(table *policies.Table, api http.Handler) (http.Handler, error) {
	err := table.Source("code").Edit(func(e *policies.Edit) { e.Plan("core", planOf) })
	if err != nil {
		return nil, err
	}
	t := weir.Must(weir.Open("memory:", &throttler.Options{Policies: table}))
	user := middleware.BearerToken(func(_ *http.Request, token string) (string, bool) { return users[token], true })
	perCaller := middleware.Limit(weir.Must(table.Policy("core")), middleware.FirstOf(user, weir.ClientIP()))
	limit := weir.Must(middleware.New(t, perCaller, nil))
	mux := http.NewServeMux()
	mux.Handle("/", limit(api))
	mux.Handle("GET /rate_limit", weir.Must(middleware.Status(t, perCaller, nil)))
	return mux, nil
}

func main() {
	var table policies.Table
	file := weir.Must(policies.WatchFile(table.Source("file"), "policies.json", nil))
	defer file.Close()
	h, err := newServer(&table, http.NotFoundHandler())
	if err != nil {
		log.Fatal(err)
	}
	log.Print(http.ListenAndServe("127.0.0.1:8080", h))
}
