// Package login limits the attempts to log in, by account and by address.
//
//	guard, err := login.New(t, perAccount, login.Form("account"), perAddress, middleware.ClientIP(nil), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	mux.Handle("POST /login", guard.Limit(handler)) // the handler calls guard.Succeeded(r)
//
// An attempt is charged to both before the handler runs, so that parallel guesses do not pass
// together. It stays charged unless the handler calls [Guard.Succeeded], or answers with a status
// of 500 or above. A status below that is no success: many applications answer a wrong password
// with a form and 200.
//
// Responses have no rate headers, which would help a guesser. While the store is down, attempts are
// answered 503. An attempt without an account, with two, or with a body above 64 KiB is answered
// 400 or 413, and charged to the address.
package login

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// Options configures a Guard. Nil and the zero value select the defaults.
type Options struct {
	// Fold returns one spelling of the names that are one account in the application. It must
	// join all spellings that the application does: an account has the quota for each spelling
	// that it leaves apart. If nil, the function [Fold].
	Fold func(name string) string

	// Refuse is middleware.Options.Refuse: for a second factor in place of a refusal, as an
	// example. May be nil.
	Refuse func(w http.ResponseWriter, r *http.Request, x middleware.Refusal)

	// Succeeded reports a success from the response, just before it is sent, for handlers that
	// can't call Guard.Succeeded. It must not be true for any failure. May be nil.
	Succeeded func(r *http.Request, status int, header http.Header) bool
}

// Fold removes white space around name, and folds the case of its letters.
func Fold(name string) string { return strings.ToLower(strings.ToUpper(strings.TrimSpace(name))) }

// maxName is how long the name of an account may be, in bytes.
const maxName = 1 << 10

// resetTimeout bounds the calls after a success.
const resetTimeout = time.Second

// Guard limits the attempts to log in. It is safe for concurrent use.
type Guard struct {
	t       *throttler.Throttler
	account *throttler.Policy
	name    Name
	fold    func(string) string
	limit   func(http.Handler) http.Handler
}

// New returns a Guard: each account, which name finds, has the limits of perAccount, and each
// client, as address finds it, the limits of perAddress, which must not be below those of perAccount:
// many users may share an address.
//
// An invalid argument is an error that wraps [throttler.ErrInvalid]. New panics if t is nil.
func New(t *throttler.Throttler, perAccount *throttler.Policy, name Name, perAddress *throttler.Policy, address middleware.Key, options *Options) (*Guard, error) {
	o := *cmp.Or(options, new(Options))
	g := &Guard{t: t, account: perAccount, name: name, fold: o.Fold}
	if g.fold == nil {
		g.fold = Fold
	}
	if name == nil {
		return nil, invalid.Errorf("login: name is nil; it must find the account of a request, such as login.Form(\"account\")")
	}
	if err := perAccount.Validate(); err != nil {
		return nil, err
	}
	if perAddress != nil && perAddress.Name == perAccount.Name {
		return nil, invalid.Errorf("login: perAccount and perAddress are both named %q; each needs a name of its own", perAccount.Name)
	}
	for _, p := range []*throttler.Policy{perAccount, perAddress} {
		if p != nil && p.Holds() {
			return nil, invalid.Errorf("login: policy %q has a limit in-flight, whose units come back after each guess; use another algorithm", p.Name)
		}
	}
	if err := allowsMore(perAddress, perAccount); err != nil {
		return nil, err
	}
	attempts := middleware.All(
		middleware.Limit(perAddress, address), // first, for it stops an attacker
		middleware.ClassifierFunc(g.charge, perAccount),
	)
	var err error
	g.limit, err = middleware.New(t, attempts, &middleware.Options{
		Dialect: middleware.NoHeaders{}, FailClosed: true, Refuse: o.Refuse,
		RefundIf: func(r *http.Request, status int, header http.Header) bool {
			if a := g.attemptOf(r); o.Succeeded != nil && o.Succeeded(r, status, header) {
				a.resets.Store(true)
				return true
			}
			return status >= http.StatusInternalServerError
		},
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// allowsMore returns an error if a limit of an address, in at least the time of an account's, is
// below it: the account's could never refuse a client at one address.
func allowsMore(perAddress, perAccount *throttler.Policy) error {
	if perAddress == nil {
		return nil // another error
	}
	for _, a := range perAddress.Limits {
		most := a.Quota
		if a.Algorithm.Drains() {
			most += a.Capacity()
		}
		for _, b := range perAccount.Limits {
			if a.Length() >= b.Length() && most < b.Capacity() {
				return invalid.Errorf("login: policy %q, of an address, allows %v, and %q, of an account, %v; an address, which many users may share, must be allowed more", perAddress.Name, a, perAccount.Name, b)
			}
		}
	}
	return nil
}

// attempt is an attempt to log in.
type attempt struct {
	key      string // of the account's count; "" if the request has no account
	status   int    // of the response then
	decision throttler.Decision
	resets   atomic.Bool // Options.Succeeded has reported a success
	done     atomic.Bool // Succeeded was called
}

// attemptKey is the key of a Guard's attempt in a request's context.
type attemptKey struct{ g *Guard }

func (g *Guard) attemptOf(r *http.Request) *attempt {
	if r == nil { // of weirfiber.Request without a limit in front
		return nil
	}
	a, _ := r.Context().Value(attemptKey{g}).(*attempt)
	return a
}

// charge returns the charge of r's account.
func (g *Guard) charge(r *http.Request) []throttler.Charge {
	if a := g.attemptOf(r); a.key != "" {
		return []throttler.Charge{g.account.Charge(a.key)}
	}
	return nil
}

// keyOf returns the key of an account's count, or "" for a name that is empty or too long.
func (g *Guard) keyOf(name string) string {
	if name = g.fold(name); name == "" || len(name) > maxName {
		return ""
	}
	return "account:" + name
}

// Limit returns h behind the limits of g. Requests of every method are limited. A body that was
// read for the account's name can be read by h again.
func (g *Guard) Limit(h http.Handler) http.Handler {
	limited := g.limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := g.attemptOf(r)
		if a.key == "" {
			http.Error(w, "a login needs the name of one account", a.status)
			return
		}
		a.decision, _ = middleware.FromContext(r.Context())
		h.ServeHTTP(w, r)
		if a.resets.Load() {
			_ = g.Succeeded(r) // the throttler's observer has seen the error
		}
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &attempt{status: http.StatusBadRequest}
		r = r.WithContext(context.WithValue(r.Context(), attemptKey{g}, a))
		switch name, err := g.name(r); {
		case err == nil:
			a.key = g.keyOf(name)
		case errors.Is(err, errTooLong):
			a.status = http.StatusRequestEntityTooLarge
		}
		limited.ServeHTTP(w, r)
	})
}

// Succeeded reports that the attempt of r succeeded: it clears the account's failures, and gives
// the address its unit back. The address keeps its failures: an attacker could log in to an
// account of its own. r is the request that the handler received, or one derived from it.
//
// After an error, such as the store's, some failures stay counted; the login may go on. Called
// again for r, Succeeded does nothing.
func (g *Guard) Succeeded(r *http.Request) error {
	a := g.attemptOf(r)
	if a == nil || a.key == "" {
		return invalid.Errorf("login: Succeeded: the request was not in Limit of this Guard; pass the request that its handler received")
	}
	if a.done.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), resetTimeout)
	defer cancel()
	_, err := g.t.Refund(ctx, a.decision)
	return errors.Join(err, g.t.Reset(ctx, g.account.Charge(a.key)))
}

// Clear clears the failures of an account, for support that unlocks it. The name may have any
// spelling that Options.Fold joins. An empty one is an error that wraps [throttler.ErrInvalid].
func (g *Guard) Clear(ctx context.Context, account string) error {
	key := g.keyOf(account)
	if key == "" {
		return invalid.Errorf("login: Clear: the name has %d bytes; it must be the name of an account, of 1 to %d", len(account), maxName)
	}
	return g.t.Reset(ctx, g.account.Charge(key))
}
