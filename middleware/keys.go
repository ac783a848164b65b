package middleware

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/weir-go/weir/throttler"
)

// KeyFunc says who is charged for a request. Keys of different functions never
// collide: each begins with its kind. ok is false if the request does not say.
type KeyFunc func(r *http.Request) (key string, ok bool)

// unknown is the key that all requests share whose KeyFunc does not know them.
const unknown = "unknown:"

// Limit charges every request 1 under p, to whoever key says. Requests of
// which key knows nothing share one count: not to know somebody must not mean
// not to limit him. Use [FirstOf] to fall back to the client's address.
func Limit(p *throttler.Policy, key KeyFunc) Classifier {
	return func(r *http.Request) []throttler.Charge {
		k, ok := key(r)
		if !ok {
			k = unknown
		}
		return []throttler.Charge{p.Charge(k)}
	}
}

// All joins what classifiers say, in their order. They are counted where the
// first charge's key is, and apart from what is counted elsewhere: put the
// outermost first. A limit on all callers together, then one on each, is
// All(together, each); the other way round, each caller would have a count of
// all callers of its own.
func All(classifiers ...Classifier) Classifier {
	return func(r *http.Request) []throttler.Charge {
		var charges []throttler.Charge
		for _, classify := range classifiers {
			charges = append(charges, classify(r)...)
		}
		return charges
	}
}

// BearerToken keys by the token of "Authorization: Bearer …", or GitHub's
// "token …". The key is a SHA-256: the token itself is not kept or logged.
func BearerToken() KeyFunc {
	return func(r *http.Request) (string, bool) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		token = strings.TrimSpace(token)
		if token == "" || !strings.EqualFold(scheme, "Bearer") && !strings.EqualFold(scheme, "token") {
			return "", false
		}
		return secretKey("token:", token), true
	}
}

// APIKey keys by the value of a request header such as "X-API-Key". The key is
// a SHA-256: the value itself is not kept or logged.
func APIKey(header string) KeyFunc {
	kind := "apikey:" + http.CanonicalHeaderKey(header) + ":"
	return func(r *http.Request) (string, bool) {
		value := r.Header.Get(header)
		if value == "" {
			return "", false
		}
		return secretKey(kind, value), true
	}
}

func secretKey(kind, secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return kind + base64.RawURLEncoding.EncodeToString(sum[:])
}

// Method keys by the request's method.
func Method() KeyFunc {
	return func(r *http.Request) (string, bool) { return "method:" + r.Method, true }
}

// RoutePattern keys by the pattern of the route that will serve the request,
// such as "/repos/{owner}/{name}", of chi or of http.ServeMux. It knows nothing
// of a request that no route of chi's serves. In front of an http.ServeMux the
// pattern is not known yet: wrap the handlers, not the mux.
func RoutePattern() KeyFunc {
	return func(r *http.Request) (string, bool) {
		pattern := r.Pattern
		if rctx := chi.RouteContext(r.Context()); rctx != nil && rctx.Routes != nil {
			path := rctx.RoutePath
			if path == "" {
				if path = r.URL.RawPath; path == "" {
					path = r.URL.Path
				}
			}
			// In front of the routes chi knows only a part of the pattern.
			if found := rctx.Routes.Find(chi.NewRouteContext(), r.Method, path); found != "" {
				pattern = found
			} else {
				pattern = rctx.RoutePattern()
			}
			if strings.HasSuffix(pattern, "/*") && rctx.RoutePath != "" {
				pattern = ""
			}
		}
		return "route:" + pattern, pattern != ""
	}
}

// FirstOf keys by the first of keys that knows the request: a token, else the
// client's address.
func FirstOf(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, bool) {
		for _, key := range keys {
			if k, ok := key(r); ok {
				return k, true
			}
		}
		return "", false
	}
}

// Join keys by all of keys together, such as a client and a route. Parts carry
// their lengths, so that no two clients can be joined into one key. It knows a
// request only if all of keys do.
func Join(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, bool) {
		joined := []byte("join:")
		for _, key := range keys {
			k, ok := key(r)
			if !ok {
				return "", false
			}
			joined = binary.AppendUvarint(joined, uint64(len(k)))
			joined = append(joined, k...)
		}
		return string(joined), true
	}
}
