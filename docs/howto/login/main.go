// Command login limits the attempts to log in, by account and by address.
package main

import (
	"log"
	"net/http"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/middleware/login"
	"github.com/weir-go/weir/throttler"
)

func newServer(t *throttler.Throttler, correct func(account, password string) bool) (http.Handler, error) {
	perAccount := weir.MustPolicy("login.account: 5 per 15 minutes")
	perAddress := weir.MustPolicy("login.address: 20 per hour")
	guard, err := login.New(t, perAccount, login.Form("account"), perAddress, weir.ClientIP(), nil)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /login", guard.Limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !correct(r.PostFormValue("account"), r.PostFormValue("password")) {
			http.Error(w, "wrong account or password", http.StatusUnauthorized)
			return
		}
		if err := guard.Succeeded(r); err != nil {
			log.Print(err) // some failures stay counted; the login goes on
		}
	})))
	return mux, nil
}

func main() {
	h, err := newServer(weir.New(), func(_, password string) bool { return password == "secret" })
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", h))
}
