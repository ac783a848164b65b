package middleware

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/policies"
)

// A Key determines the key that a request is charged to. Functions such as
// [ClientIP], [BearerToken] and [FirstOf] return one, and [KeyFunc] makes one
// from a function. Keys of different kinds never collide: each begins with its
// kind. The zero value is an error in [New].
type Key struct {
	read      func(r *http.Request) (key string, ok bool)
	addresses []addressSource // sources that it may use
	optional  bool            // Join can omit it
	joins     []Key           // of a Join
	route     bool            // it may use a RoutePattern
	err       error           // why it cannot be used

	make  func(text string) (key, problem string) // of For; nil for Everyone
	forms []policies.KeyForm                      // of the keys; none if there may be any
}

// KeyFunc returns a Key for a kind of key that this package does not provide, such as the
// organization in a route. read returns false if the request has no such key. The string should
// begin with its kind, as in "org:acme"; an empty one is an error, as under [Limit]. KeyFunc
// panics if read is nil.
func KeyFunc(read func(r *http.Request) (key string, ok bool)) Key {
	if read == nil {
		panic("middleware: KeyFunc: the function is nil")
	}
	return Key{read: read, make: func(text string) (string, string) {
		if text == "" {
			return "", "the key is empty"
		}
		return text, ""
	}}
}

// Of returns the key of r, and false if r has none.
func (k Key) Of(r *http.Request) (key string, ok bool) { return k.read(r) }

// maxCredential is how long a header with a token or a key may be, in bytes: verifying
// one costs time before any limit.
const maxCredential = 16 << 10

// unknown is the key shared by all requests that have no key.
const unknown = "unknown:"

func (k Key) orUnknown(r *http.Request) string {
	if key, ok := k.read(r); ok {
		return key
	}
	return unknown
}

func (k Key) validate() error {
	if k.err == nil && k.read == nil {
		return invalid.Errorf("middleware: a Key is the zero value; use ClientIP, BearerToken, KeyFunc or another function that returns one")
	}
	return k.err
}

// keyOfAll returns a Key that combines keys; read computes it.
func keyOfAll(keys []Key, read func(r *http.Request) (string, bool)) Key {
	if len(keys) == 0 {
		return Key{err: invalid.Errorf("middleware: FirstOf and Join need keys; without any, all requests would share one count")}
	}
	joined, known := Key{read: read}, true
	for _, k := range keys {
		if err := k.validate(); err != nil {
			return Key{err: err}
		}
		joined.addresses = append(joined.addresses, k.addresses...)
		joined.route = joined.route || k.route
		joined.forms, known = append(joined.forms, k.forms...), known && len(k.forms) > 0
	}
	if !known {
		joined.forms = nil
	}
	return joined
}

// Everyone returns one key for all requests, for a limit on all callers
// together.
func Everyone() Key {
	return Key{
		read:  func(*http.Request) (string, bool) { return everyone, true },
		forms: []policies.KeyForm{{Kind: everyone, Has: func(key string) bool { return key == everyone }}},
	}
}

// Subject keys by the authenticated user, or another identity that subject finds in a request
// that the application has authenticated, usually in its context. An empty subject is no key.
//
// Subject, [BearerToken] and [APIKey] return the same key for the same subject, so that a user
// has one count however it authenticates. Give subjects of different kinds their own prefixes,
// such as "user/7" and "app/7". Subject panics if subject is nil.
func Subject(subject func(r *http.Request) (subject string, ok bool)) Key {
	if subject == nil {
		panic("middleware: Subject: the function is nil")
	}
	k := Key{read: func(r *http.Request) (string, bool) {
		s, ok := subject(r)
		return "subject:" + s, ok && s != ""
	}}
	k.make, k.forms = prefixed("subject:", "subject")
	return k
}

// BearerToken keys by the subject of the token of "Authorization: Bearer …", or GitHub's
// "token …". verify reports whether the token is valid, and returns its subject. An invalid
// token is no key, so that with [FirstOf] its requests count by address: otherwise each
// invented token would have a fresh quota. Nor is a header above 16 KiB. BearerToken does not
// authenticate; refusing such requests is up to the handler. It panics if verify is nil.
// verify runs for each request, before any limit: keep it cheap, or authenticate in front and
// use [Subject].
func BearerToken(verify func(r *http.Request, token string) (subject string, ok bool)) Key {
	if verify == nil {
		panic("middleware: BearerToken: verify is nil; unverified tokens must not be keys")
	}
	return Subject(func(r *http.Request) (string, bool) {
		credentials := r.Header.Get("Authorization")
		if len(credentials) > maxCredential {
			return "", false
		}
		scheme, token, _ := strings.Cut(credentials, " ")
		token = strings.TrimSpace(token)
		if token == "" || !strings.EqualFold(scheme, "Bearer") && !strings.EqualFold(scheme, "token") {
			return "", false
		}
		return verify(r, token)
	})
}

// APIKey keys by the subject of the key in a request header such as "X-API-Key".
// verify is as for [BearerToken]. It panics if verify is nil.
func APIKey(header string, verify func(r *http.Request, key string) (subject string, ok bool)) Key {
	if verify == nil {
		panic("middleware: APIKey: verify is nil; unverified keys must not be keys of counts")
	}
	if header == "" || !isToken(header) {
		return Key{err: invalid.Errorf("middleware: APIKey: header is %q; it must be a header's name, such as X-API-Key", header)}
	}
	return Subject(func(r *http.Request) (string, bool) {
		value := r.Header.Get(header)
		if value == "" || len(value) > maxCredential {
			return "", false
		}
		return verify(r, value)
	})
}

// Method keys by the request's method. Methods that are not net/http's share a key,
// because clients can make them up.
func Method() Key {
	k := Key{make: methodFor, read: func(r *http.Request) (string, bool) {
		method := cmp.Or(r.Method, http.MethodGet) // a request that was not received has none
		if !slices.Contains(methods, method) {
			method = "other"
		}
		return "method:" + method, true
	}}
	_, k.forms = prefixed("method:", "method")
	return k
}

// RoutePattern keys by the pattern of the route that will serve the request, such as
// "/repos/{owner}/{name}", of chi or of http.ServeMux. A request that no route serves has no
// key; [Join] uses its other keys. In front of an http.ServeMux the pattern is not known yet:
// wrap the handlers, not the mux; the middleware warns about that once. Middlewares that change the path that chi routes by, such as
// its StripSlashes and CleanPath, belong in front of the limit.
func RoutePattern() Key {
	k := Key{optional: true, route: true, read: func(r *http.Request) (string, bool) {
		pattern := r.Pattern
		if rctx := chiRoute(r); rctx != nil {
			pattern = chiPattern(rctx, r)
		}
		return "route:" + pattern, pattern != ""
	}}
	k.make, k.forms = prefixed("route:", "route's pattern")
	return k
}

// chiRoute returns the context of the chi router that serves r, or nil.
func chiRoute(r *http.Request) *chi.Context {
	if rctx := chi.RouteContext(r.Context()); rctx != nil && rctx.Routes != nil {
		return rctx
	}
	return nil
}

// chiPattern returns the pattern of the route that serves r, or "".
func chiPattern(rctx *chi.Context, r *http.Request) string {
	// At the route itself rctx knows the whole pattern; in front of it, a part
	// that ends in a wildcard, or nothing.
	known := rctx.RoutePattern()
	if known != "" && !strings.HasSuffix(known, "/*") {
		return known
	}
	path := chiPath(rctx, r)
	method := rctx.RouteMethod
	if method == "" {
		method = r.Method
	}
	pattern := rctx.Routes.Find(chi.NewRouteContext(), method, path)
	if pattern == "" && method == http.MethodHead { // as GetHead, further in, will do
		pattern = rctx.Routes.Find(chi.NewRouteContext(), http.MethodGet, path)
	}
	if pattern != "/" { // a mounted router is at both, and RoutePattern names it so
		pattern = strings.TrimSuffix(pattern, "/")
	}
	return pattern
}

// chiPath returns the whole path that chi routes by. RoutePath is the path after changes by
// middlewares or, in a subrouter, the rest of it. The path before the rest follows from
// RoutePatterns and the values of their parameters.
func chiPath(rctx *chi.Context, r *http.Request) string {
	prefix, values := "", rctx.URLParams.Values
	for _, pattern := range rctx.RoutePatterns {
		prefix = strings.TrimSuffix(prefix, "/") // of a wildcard that a subrouter has emptied
		for open := strings.IndexAny(pattern, "{*"); open >= 0 && len(values) > 0; open = strings.IndexAny(pattern, "{*") {
			prefix += pattern[:open] + values[0]
			pattern, values = afterParameter(pattern[open:]), values[1:]
		}
		prefix += pattern
	}
	if n := len(rctx.URLParams.Values); prefix != "" && n > 0 && rctx.URLParams.Values[n-1] != "" {
		return prefix // a route's own wildcard
	}
	path := rctx.RoutePath
	if path == "" && prefix == "" {
		if path = r.URL.RawPath; path == "" {
			path = r.URL.Path
		}
		if path == "" { // "GET http://example.org HTTP/1.1"
			path = "/"
		}
	}
	return strings.TrimSuffix(prefix, "/") + path
}

// afterParameter returns pattern without the parameter at its beginning: a wildcard, or a name
// in braces, perhaps with an expression that contains braces.
func afterParameter(pattern string) string {
	depth := 0
	for i, c := range pattern {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		}
		if depth == 0 {
			return pattern[i+1:]
		}
	}
	return ""
}

// is reports whether k's keys are of kind alone.
func (k Key) is(kind string) bool { return len(k.forms) == 1 && k.forms[0].Kind == kind }

// FirstOf keys by the first of keys that the request has, such as a user or else the client's
// address.
func FirstOf(keys ...Key) Key {
	for i, k := range keys[:max(len(keys), 1)-1] {
		if k.is(everyone) || k.is("ip:") && !keys[i+1].is(everyone) {
			return Key{err: invalid.Errorf("middleware: FirstOf: key %d is the address or Everyone, which each request has, so that key %d would not be asked; put it last", i, i+1)}
		}
	}
	k := keyOfAll(keys, func(r *http.Request) (string, bool) {
		for _, k := range keys {
			if key, ok := k.read(r); ok {
				return key, true
			}
		}
		return "", false
	})
	k.make = func(string) (string, string) {
		return "", "FirstOf has keys of several kinds; call For of the one that the client has"
	}
	return k
}

// Join keys by all of keys together, such as a client and a route. Parts carry their lengths,
// so that no two clients can be joined into one key. A request that lacks one of keys has no
// key, but it may lack a [RoutePattern] if it has another key.
func Join(keys ...Key) Key {
	k := keyOfAll(keys, func(r *http.Request) (string, bool) {
		parts, found := make([]string, len(keys)), false
		for i, k := range keys {
			key, ok := k.read(r)
			if !ok && !k.optional {
				return "", false
			}
			if ok {
				parts[i], found = key, true
			}
		}
		return joinedKey(parts...), found
	})
	k.joins = keys
	_, k.forms = prefixed("join:", "key")
	return k
}
