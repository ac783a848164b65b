// Package forwardauth decides for reverse proxies that ask another server about each request:
// nginx' auth_request, Caddy's forward_auth and Traefik's ForwardAuth. It is package
// middleware with rules from a file in place of a classifier: see docs/howto/forward-auth.md.
package forwardauth

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// StatusHeader contains the true status of a refusal that a proxy gets with another status.
const StatusHeader = "X-Weir-Status"

// handler answers proxies.
type handler struct {
	keys     *Keys
	rules    []rule
	limits   [][]middleware.Classifier // by rule
	refuses  bool                      // ambiguous paths
	check    http.Handler
	observer observe.Observer
	warn     sync.Once

	usesHosts bool // rules or keys depend on hosts
	warnHost  sync.Once
}

// New returns the handler of the rules under forward_auth. It serves / and, for refusals with
// another status than 429, a path of that status, such as /403. If a rule names a policy that
// c does not have, the error wraps throttler.ErrInvalid. A nil observer means
// weirlog.Default().
func New(t *throttler.Throttler, c *config.Config, keys *Keys, observer observe.Observer) (http.Handler, error) {
	h, err := newHandler(c, keys)
	if err != nil {
		return nil, err
	}
	if h.observer = observer; observer == nil {
		h.observer = weirlog.Default()
	}
	options := &middleware.Options{Deadline: c.Deadline, Dialect: dialects[keys.Dialect], Observer: h.observer}
	options.Refuse = func(w http.ResponseWriter, r *http.Request, x middleware.Refusal) {
		x.DocumentationURL = string(keys.Documentation)
		x.Write(w, r)
	}
	if charged := slices.Concat(h.limits...); len(charged) > 0 {
		if _, err := middleware.New(t, middleware.All(charged...), options); err != nil { // the code below doesn't check keys and policies
			return nil, err
		}
	}
	limit, err := middleware.New(t, middleware.ClassifierFunc(func(r *http.Request) []throttler.Charge { return forwardedOf(r).charges }, slices.Collect(maps.Values(c.Policies))...), options)
	if err != nil {
		return nil, err
	}
	h.check = limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	return h, nil
}

// newHandler returns a handler that knows the rules, and can't decide yet.
func newHandler(c *config.Config, keys *Keys) (*handler, error) {
	h := &handler{keys: keys, rules: keys.Rules, refuses: keys.AmbiguousPaths == refuseAmbiguous}
	var trusted []netip.Prefix
	for _, n := range keys.TrustedProxies {
		trusted = append(trusted, netip.Prefix(n))
	}
	ip := middleware.ClientIP(&middleware.IPOptions{TrustedProxies: trusted})
	for i := range h.rules {
		var limits []middleware.Classifier
		for j, charge := range h.rules[i].Charge {
			p := c.Policies[charge.policy]
			if p == nil {
				return nil, invalid.Errorf("%s: forward_auth.rules[%d].charge[%d]: %q is no policy of the file; it must be one of %s",
					c.File, i, j, charge.policy, strings.Join(slices.Sorted(maps.Keys(c.Policies)), ", "))
			}
			if slices.ContainsFunc(p.Limits, func(l quota.Limit) bool { return l.Algorithm.Holds() }) {
				return nil, invalid.Errorf("%s: forward_auth.rules[%d].charge[%d]: policy %q has a limit in-flight, and a request is over here before the application serves it, so that the limit would bound nothing; it must have another algorithm",
					c.File, i, j, charge.policy)
			}
			limits = append(limits, middleware.Limit(p, charge.key(ip)))
		}
		h.limits = append(h.limits, limits)
		h.usesHosts = h.usesHosts || h.rules[i].usesHosts()
	}
	return h, nil
}

// Charged is a charge of a request, and the index of the rule that makes it.
type Charged struct {
	Rule int
	throttler.Charge
}

// Explain returns the charges of a request as its proxy would forward it, from address, and
// whether its path is ambiguous. An error says why it would be refused without a decision.
func Explain(c *config.Config, keys *Keys, address string, r *http.Request) (charged []Charged, ambiguous bool, err error) {
	if _, err := netip.ParseAddr(address); err != nil {
		return nil, false, fmt.Errorf("the address is %q; it must be an address of IPv4 or IPv6, such as 203.0.113.7", address)
	}
	h, err := newHandler(c, keys)
	if err != nil {
		return nil, false, err
	}
	r = r.Clone(r.Context())
	r.RemoteAddr = netip.AddrPortFrom(netip.Prefix(keys.TrustedProxies[0]).Addr(), 1).String()
	r.Header.Set("X-Forwarded-For", address)
	f := &forwarded{method: strings.ToUpper(r.Method), host: hostOf(http.Header{"X-Forwarded-Host": {r.Host}})}
	path, ok := pathOf(r.URL.RequestURI())
	if ok {
		f.readings, ok = read(path)
	}
	if !ok {
		return nil, false, fmt.Errorf("%q is no path", r.URL.RequestURI())
	}
	if f.readings.ambiguous && h.refuses {
		return nil, true, errors.New("the path can be read in several ways, and ambiguous_paths is refuse")
	}
	r = r.WithContext(context.WithValue(r.Context(), forwardedKey{}, f))
	for _, i := range h.decide(f, r.Header) {
		for _, charge := range h.charges([]int{i}, r) {
			charged = append(charged, Charged{i, charge})
		}
	}
	return charged, f.readings.ambiguous, nil
}

// decide returns the rules that charge a request: the first that matches it or, if its path has
// several readings, the first that matches each of them. A rule that charges nothing decides
// about no path that is ambiguous, unless it has no paths.
func (h *handler) decide(f *forwarded, header http.Header) (charging []int) {
	for _, path := range f.readings.paths {
		for i := range h.rules {
			r := &h.rules[i]
			found := r.matches(f, path, header)
			if found == no || r.Free && (found == maybe || f.readings.ambiguous && len(r.Paths) > 0) {
				continue
			}
			if !r.Free && !slices.Contains(charging, i) {
				charging = append(charging, i)
			}
			if found == yes {
				break
			}
		}
	}
	return charging
}

// charges returns the charges of rules, each once.
func (h *handler) charges(rules []int, r *http.Request) (charges []throttler.Charge) {
	for _, i := range rules {
		for _, limit := range h.limits[i] {
			for _, c := range limit.Charges(r) {
				if !slices.ContainsFunc(charges, func(o throttler.Charge) bool { return o.Policy.Name == c.Policy.Name && o.Key == c.Key }) {
					charges = append(charges, c)
				}
			}
		}
	}
	return charges
}

// forwarded is the request that the proxy asks about. The asking request's own method and URL
// are the proxy's.
type forwarded struct {
	method, host string
	readings     readings
	charges      []throttler.Charge
}

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
	if h.keys.IsStranger(r.RemoteAddr) {
		w.Header().Set("Connection", "close")
		h.misconfigured(w, http.StatusForbidden, fmt.Sprintf("the address %s is no trusted proxy; add it to forward_auth.trusted_proxies", r.RemoteAddr))
		return
	}
	if wrong := misses(r.Header); wrong != "" {
		h.misconfigured(w, http.StatusInternalServerError, wrong)
		return
	}
	if r.Header["X-Forwarded-Host"] == nil && h.usesHosts {
		h.warnHost.Do(func() {
			h.observer.Warned(observe.Warned{Text: "a request came without X-Forwarded-Host: each rule that charges for some host is for it", Hint: "a client of HTTP/1.0 may send no host; for others, the proxy must set the header"})
		})
	}
	f := &forwarded{method: strings.ToUpper(r.Header.Get("X-Forwarded-Method")), host: hostOf(r.Header)} // some applications read methods in any case
	path, ok := pathOf(r.Header.Get("X-Forwarded-Uri"))
	if ok {
		f.readings, ok = read(path)
	}
	if !ok {
		http.Error(w, "X-Forwarded-Uri is no path", http.StatusBadRequest)
		return
	}
	if f.readings.ambiguous && h.refuses {
		http.Error(w, "the path can be read in several ways", http.StatusBadRequest)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), forwardedKey{}, f))
	f.charges = h.charges(h.decide(f, r.Header), r)
	if len(f.charges) > quota.MaxCharges {
		http.Error(w, "the path can be read in too many ways", http.StatusBadRequest)
		return
	}
	h.check.ServeHTTP(w, r)
}

// misconfigured refuses a request from a proxy that is set up wrongly, or from no proxy.
func (h *handler) misconfigured(w http.ResponseWriter, status int, text string) {
	h.warn.Do(func() {
		h.observer.Warned(observe.Warned{Text: "forward auth refuses requests: " + text, Hint: "docs/howto/forward-auth.md has the configuration of each proxy"})
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

// misses returns a mistake in the proxy's headers, or "". If a header is there twice, one may be
// the client's. A request of HTTP/1.0 has no host, and some proxies leave the header out then.
func misses(header http.Header) string {
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"} {
		switch {
		case header.Get(name) == "" && name != "X-Forwarded-Host":
			return name + " is missing; the proxy must set it"
		case len(header[name]) > 1 && name != "X-Forwarded-For":
			return name + " appears twice; the proxy must replace the value that a client sends"
		}
	}
	return ""
}

func hostOf(header http.Header) string {
	host := strings.ToLower(header.Get("X-Forwarded-Host"))
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.Trim(host, "[].")
}

// pathOf returns the path of a URI as sent: of /login?x, http://example.com/login, ?x or, in
// OPTIONS requests, *. It returns false if there is none, or if the URI contains what a proxy
// would not pass on, or a '#', at which some applications end the path.
func pathOf(uri string) (path string, ok bool) {
	path, _, _ = strings.Cut(uri, "?")
	if _, after, absolute := strings.Cut(path, "://"); absolute && !strings.HasPrefix(path, "/") {
		_, path, _ = strings.Cut(after, "/")
		path = "/" + path
	}
	if path == "" || path == "*" {
		path = "/" + path
	}
	return path, path[0] == '/' && !strings.Contains(uri, "#") && !hasControl(uri)
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
