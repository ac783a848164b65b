package transport

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// Defaults of Options.
const (
	DefaultMaxPause = time.Hour
	DefaultBackoff  = time.Minute
)

// Options configures a Transport. Nil and the zero value select the defaults.
type Options struct {
	// Base sends the requests. If nil, http.DefaultTransport.
	Base http.RoundTripper

	// Retries is how many times a request is sent again, after the pause, if the response has
	// status 429, 503 or 529 and asks for a pause. A request with a body needs its GetBody. If
	// zero, requests are not sent again: the caller gets the response.
	Retries int

	// MaxPause bounds how long a response can pause requests. If zero, DefaultMaxPause.
	MaxPause time.Duration

	// Backoff is the pause after a response that refuses a request and does not say when to
	// come back: a 429, or a 403 with an X-RateLimit-Remaining of 0. At most MaxPause. If zero,
	// DefaultBackoff, or MaxPause if that is shorter.
	Backoff time.Duration
}

// Transport is an http.RoundTripper that waits before each request. It is safe for
// concurrent use.
type Transport struct {
	throttler *throttler.Throttler
	charges   func(*http.Request) []throttler.Charge
	options   Options
}

// New returns a Transport that waits for the charges of each request, and pauses them when a
// response asks for it. A request without charges is sent at once. The error is about options
// and wraps throttler.ErrInvalid. New panics if t or charges is nil.
func New(t *throttler.Throttler, charges func(*http.Request) []throttler.Charge, options *Options) (*Transport, error) {
	if t == nil || charges == nil {
		panic("transport: New: t or charges is nil")
	}
	var o Options
	if options != nil {
		o = *options
	}
	o.Base = cmp.Or(o.Base, http.DefaultTransport)
	o.MaxPause = cmp.Or(o.MaxPause, DefaultMaxPause)
	switch {
	case o.Retries < 0:
		return nil, invalid.Errorf("transport: Retries is %d; it must be 0 or more", o.Retries)
	case o.MaxPause < 0 || o.MaxPause > quota.MaxWindow:
		return nil, invalid.Errorf("transport: MaxPause is %v; it must be positive and at most %v (366 days), or 0 for %v", o.MaxPause, quota.MaxWindow, DefaultMaxPause)
	case o.Backoff < 0 || o.Backoff > o.MaxPause:
		return nil, invalid.Errorf("transport: Backoff is %v; it must be positive and at most MaxPause, %v, or 0 for %v", o.Backoff, o.MaxPause, DefaultBackoff)
	}
	o.Backoff = cmp.Or(o.Backoff, DefaultBackoff)
	return &Transport{t, charges, o}, nil
}

// ByHost charges p for the host of a request, in lower case and without a trailing dot, and
// its port unless that is the scheme's own: api.example.com, api.example.com:8080.
func ByHost(p *throttler.Policy) func(*http.Request) []throttler.Charge {
	return func(r *http.Request) []throttler.Charge {
		return []throttler.Charge{p.Charge(hostOf(r.URL))}
	}
}

func hostOf(u *url.URL) string {
	host, port := strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), u.Port()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port == "" || u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		return host
	}
	return host + ":" + port
}

// RoundTrip waits until r may start, and sends it. Its units in flight are released when the
// response's body has been read to its end or closed. If r can't start before the deadline of
// its context, or the backend does not answer, r is not sent, and the error wraps the error of
// [throttler.Throttler.Wait].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, charges := r.Context(), t.charges(r)
	if len(charges) == 0 {
		return t.options.Base.RoundTrip(r)
	}
	for retries := t.options.Retries; ; retries-- {
		d, err := t.throttler.Wait(ctx, charges...)
		if err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // as a RoundTripper must
			}
			return nil, fmt.Errorf("transport: %w", err)
		}
		letGo := t.hold(ctx, d)
		response, err := t.options.Base.RoundTrip(r)
		if err != nil {
			letGo()
			return nil, err
		}
		letGoOf(response, letGo)
		now := t.throttler.Clock().Now()
		pause := min(pauseOf(response, now, t.options.Backoff), t.options.MaxPause)
		if pause <= 0 {
			return response, nil
		}
		if t.pause(ctx, now.Add(pause), charges) != nil || retries == 0 || !isRefusal(response) || endsWithin(ctx, pause) {
			return response, nil
		}
		again, err := rewound(r)
		if err != nil {
			return response, nil
		}
		if response.Body != nil {
			_ = response.Body.Close() // unread: it may never come
		}
		r = again
	}
}

// pause pauses charges, even if the request's context is over. The error is left to the
// throttler's observer: the caller gets the response.
func (t *Transport) pause(ctx context.Context, until time.Time, charges []throttler.Charge) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	return t.throttler.Pause(ctx, until, charges...)
}

// detached returns a context for a call that must be made even if the request is over.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}

// isRefusal reports whether the request was not served, so that it can be sent again.
func isRefusal(response *http.Response) bool {
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, statusOverloaded:
		return true
	}
	return false
}

func endsWithin(ctx context.Context, d time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < d
}

// rewound returns r, ready to be sent again.
func rewound(r *http.Request) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	if r.GetBody == nil {
		return nil, http.ErrBodyNotAllowed
	}
	body, err := r.GetBody()
	again := r.Clone(r.Context())
	again.Body = body
	return again, err
}
