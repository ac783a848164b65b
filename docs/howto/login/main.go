// Command login limits the attempts to log in, by address and by account.
package main

import (
	"log"
	"net/http"
	"strings"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

var (
	// Failures from one address, for any account; and for one account, from any address.
	byAddress = &throttler.Policy{Name: "login.address", Limits: []throttler.Limit{{Quota: 20, Window: time.Hour}}}
	byAccount = &throttler.Policy{Name: "login.account", Limits: []throttler.Limit{{Quota: 5, Window: 15 * time.Minute}}}
)

func accountOf(r *http.Request) string {
	return "account:" + strings.ToLower(r.PostFormValue("account"))
}

func newServer(t *throttler.Throttler, correct func(account, password string) bool) (http.Handler, error) {
	account := middleware.KeyFunc(func(r *http.Request) (string, bool) { return accountOf(r), r.PostFormValue("account") != "" })
	attempts := middleware.All(middleware.Limit(byAddress, middleware.ClientIP(nil)), middleware.Limit(byAccount, middleware.FirstOf(account, middleware.ClientIP(nil))))
	limit, err := middleware.New(t, attempts, &middleware.Options{
		Dialect:    middleware.NoHeaders{}, // do not reveal the limits
		FailClosed: true,                   // no guessing while the counts are unavailable
		RefundIf:   func(_ *http.Request, status int, _ http.Header) bool { return status < 400 },
	})
	if err != nil {
		return nil, err
	}
	login := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !correct(r.PostFormValue("account"), r.PostFormValue("password")) {
			http.Error(w, "wrong account or password", http.StatusUnauthorized)
			return
		}
		// A caller with the password did not guess. The address keeps its failures.
		if err := t.Reset(r.Context(), byAccount.Charge(accountOf(r))); err != nil {
			log.Print(err)
		}
	}))
	return http.MaxBytesHandler(login, 4<<10), nil // the key reads the form
}

func main() {
	t := throttler.New(memorybackend.NewDefault(), nil)
	h, err := newServer(t, func(_, password string) bool { return password == "secret" })
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", h))
}
