// Package page serves the demo's page: the quotas of a caller as bars, buttons that send
// requests, and the five algorithms next to each other. Refreshing the page is free.
package page

import (
	"context"
	"crypto/sha256"
	_ "embed" // page.html
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler/quota"
)

//go:embed page.html
var html string

// Options says what the page shows.
type Options struct {
	// Caller is the key that the API charges requests to. Required.
	Caller middleware.Key

	// Callers are the callers that the user can choose, besides the one without a token.
	Callers []Caller

	// Policies are the policies of the API, whose limits the page names.
	Policies []*quota.Policy

	// Place returns where the counts of a caller live. Required.
	Place func(ctx context.Context, caller string) Place

	// Stack is the Unix socket of the program that started the demo's servers, and stops and
	// continues them. If empty, the page does not offer that.
	Stack string
}

// Caller is a caller that the page can act as.
type Caller struct {
	Name  string `json:"name"`
	Token string `json:"token,omitempty"` // no secret: everybody is shown it
}

// Place is where counts live.
type Place struct {
	Backend string `json:"backend"`
	Shard   string `json:"shard,omitempty"`
}

// New returns the handler of / and of /page/.
func New(o *Options) http.Handler {
	p := &page{options: o, algorithms: newAlgorithms(o.Caller)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", getPage)
	mux.HandleFunc("GET /page/state", p.getState)
	mux.HandleFunc("GET /page/algorithms", p.algorithms.get)
	mux.HandleFunc("POST /page/algorithms", p.algorithms.post)
	if o.Stack != "" {
		mux.Handle("/page/stack", controls(o.Stack))
		mux.Handle("/page/stack/", controls(o.Stack))
	}
	return http.NewCrossOriginProtection().Handler(mux)
}

type page struct {
	options    *Options
	algorithms *algorithms
}

// policy is the page's Content-Security-Policy: its one script and its one style, by their
// hashes, and requests to this server.
var policy = "default-src 'none'; script-src " + hashOf("script") + "; style-src " + hashOf("style") +
	"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// hashOf returns the hash of the text of the page's one element of that name.
func hashOf(element string) string {
	_, text, _ := strings.Cut(html, "<"+element+">")
	text, _, _ = strings.Cut(text, "</"+element+">")
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func getPage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(html)) // fails only if the client has left
}

// state is the answer that the page polls.
type state struct {
	Callers []Caller           `json:"callers"`
	Limits  map[string][]limit `json:"limits"` // by the policies' names
	Place   Place              `json:"place"`  // of the caller
	Stack   bool               `json:"stack"`  // the servers can be stopped
}

type limit struct {
	Text   string `json:"text"`
	Window string `json:"window"`  // as the header RateLimit names it
	AtOnce bool   `json:"at_once"` // all used units are returned at the reset
}

func (p *page) getState(w http.ResponseWriter, r *http.Request) {
	s := state{
		Callers: append([]Caller{{Name: "this address"}}, p.options.Callers...),
		Limits:  make(map[string][]limit),
		Stack:   p.options.Stack != "" && local(r),
	}
	for _, policy := range p.options.Policies {
		for _, l := range policy.Limits {
			s.Limits[policy.Name] = append(s.Limits[policy.Name], limit{textOf(l), l.Per(), l.Algorithm.ResetsAtOnce()})
		}
	}
	if key, ok := p.options.Caller.Of(r); ok {
		s.Place = p.options.Place(r.Context(), key)
	}
	writeJSON(w, s)
}

// textOf returns the limit as configurations write it: 60 per 1h.
func textOf(l quota.Limit) string {
	text, err := l.MarshalText()
	if err != nil { // the limit is not valid
		return l.String()
	}
	return string(text)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(v) // the client may have left
}
