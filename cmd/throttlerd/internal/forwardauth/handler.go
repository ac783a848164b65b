// Package forwardauth decides for reverse proxies that ask another server about each request:
// nginx' auth_request, Caddy's forward_auth and Traefik's ForwardAuth. It is package
// middleware with rules from a file in place of a classifier: see docs/forward-auth.md.
package forwardauth

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/internal/invalid"
	weirlog "github.com/weir-go/weir/log"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// StatusHeader contains the true status of a refusal that a proxy gets with another status.
const StatusHeader = "X-Weir-Status"

// handler answers proxies.
type handler struct {
	trusted  []netip.Prefix
	rules    []rule
	limits   [][]middleware.Classifier // by rule
	check    http.Handler
	observer observe.Observer
	warn     sync.Once
}

// New returns the handler of the rules under forward_auth. It serves / and, for refusals with
// another status than 429, a path of that status, such as /403. If a rule names a policy that
// c does not have, the error wraps throttler.ErrInvalid. A nil observer means
// weirlog.Default().
func New(t *throttler.Throttler, c *config.Config, keys *Keys, observer observe.Observer) (http.Handler, error) {
	h := &handler{rules: keys.Rules, observer: observer}
	if h.observer == nil {
		h.observer = weirlog.Default()
	}
	for _, n := range keys.TrustedProxies {
		h.trusted = append(h.trusted, netip.Prefix(n))
	}
	ip := middleware.ClientIP(&middleware.IPOptions{TrustedProxies: h.trusted})
	for i := range h.rules {
		var limits []middleware.Classifier
		for j, charge := range h.rules[i].Charge {
			p := c.Policies[charge.policy]
			if p == nil {
				return nil, invalid.Errorf("%s: forward_auth.rules[%d].charge[%d]: %q is no policy of the file; it must be one of %s",
					c.File, i, j, charge.policy, strings.Join(slices.Sorted(maps.Keys(c.Policies)), ", "))
			}
			limits = append(limits, middleware.Limit(p, charge.key(ip)))
		}
		h.limits = append(h.limits, limits)
	}
	options := &middleware.Options{Deadline: c.Deadline, Dialect: dialects[keys.Dialect], DocumentationURL: keys.Documentation, Observer: h.observer}
	if all := slices.Concat(h.limits...); len(all) > 0 {
		if _, err := middleware.New(t, middleware.All(all...), options); err != nil { // the code below doesn't check keys and policies
			return nil, err
		}
	}
	limit, err := middleware.New(t, middleware.ClassifierFunc(h.charges, slices.Collect(maps.Values(c.Policies))...), options)
	if err != nil {
		return nil, err
	}
	h.check = limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	return h, nil
}

// charges returns the charges of the first rule that matches r.
func (h *handler) charges(r *http.Request) (all []throttler.Charge) {
	f := forwardedOf(r)
	for i := range h.rules {
		if h.rules[i].matches(f, r.Header) {
			for _, limit := range h.limits[i] {
				all = append(all, limit.Charges(r)...)
			}
			return all
		}
	}
	return nil
}

// forwarded is the request that the proxy asks about. The asking request's own method and URL
// are the proxy's.
type forwarded struct{ method, host, path string }

type forwardedKey struct{}

func forwardedOf(r *http.Request) *forwarded {
	return r.Context().Value(forwardedKey{}).(*forwarded)
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, err := refusalStatus(r.URL.Path)
	if err != nil {
		h.misconfigured(w, http.StatusInternalServerError, err.Error())
		return
	}
	w = &answer{ResponseWriter: w, status: status}
	if !h.isTrusted(r.RemoteAddr) {
		h.misconfigured(w, http.StatusForbidden, fmt.Sprintf("the address %s is no trusted proxy; add it to forward_auth.trusted_proxies", r.RemoteAddr))
		return
	}
	f, wrong := read(r.Header)
	if wrong != "" {
		h.misconfigured(w, http.StatusInternalServerError, wrong)
		return
	}
	if f == nil {
		http.Error(w, "X-Forwarded-Uri is no path", http.StatusBadRequest)
		return
	}
	h.check.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), forwardedKey{}, f)))
}

// misconfigured refuses a request from a proxy that is set up wrongly, or from no proxy.
func (h *handler) misconfigured(w http.ResponseWriter, status int, text string) {
	h.warn.Do(func() {
		h.observer.Warned(observe.Warned{Text: "forward auth refuses requests: " + text, Hint: "docs/forward-auth.md has the configuration of each proxy"})
	})
	http.Error(w, text, status)
}

// refusalStatus returns the status that the proxy wants refusals to have, or 0 for the true
// one. It is in the path because the query, with Caddy, is the client's.
func refusalStatus(path string) (int, error) {
	if path == "/" {
		return 0, nil
	}
	status, err := strconv.Atoi(strings.TrimPrefix(path, "/"))
	if err != nil || status < 400 || status > 499 {
		return 0, fmt.Errorf("the path is %q; it must be /, or the status of refusals from 400 to 499, such as /403", path)
	}
	return status, nil
}

func (h *handler) isTrusted(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(h.trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// read returns the request in headers, or nil if its URI can't be read, or the mistake in the
// proxy's headers. If a header is there twice, one may be the client's.
func read(header http.Header) (f *forwarded, wrong string) {
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"} {
		switch {
		case header.Get(name) == "":
			return nil, name + " is missing; the proxy must set it"
		case len(header[name]) > 1 && name != "X-Forwarded-For":
			return nil, name + " appears twice; the proxy must replace the value that a client sends"
		}
	}
	uri := header.Get("X-Forwarded-Uri")
	u, err := url.ParseRequestURI(uri)
	if err != nil || strings.Contains(uri, "#") { // some applications cut off '#' and the text after it
		return nil, ""
	}
	host := strings.ToLower(header.Get("X-Forwarded-Host"))
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	method := strings.ToUpper(header.Get("X-Forwarded-Method")) // as some applications read it
	return &forwarded{method, strings.Trim(host, "[]."), u.Path}, ""
}

// answer writes refusals with the status that the proxy wants.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	if a.status != 0 && status >= 400 {
		a.Header().Set(StatusHeader, strconv.Itoa(status))
		status = a.status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
