package transport

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler"
)

// DefaultMaxPause bounds a pause if Options sets no MaxPause.
const DefaultMaxPause = time.Hour

// Options configures a Transport. Nil and the zero value select the defaults.
type Options struct {
	// Base sends the requests. If nil, http.DefaultTransport.
	Base http.RoundTripper

	// Retries is how many times a request is sent again, after the pause, if the response has
	// status 429 or 503 and asks for a pause. A request with a body needs its GetBody. If
	// zero, requests are not sent again: the caller gets the response.
	Retries int

	// MaxPause bounds how long a response can pause requests. If zero, DefaultMaxPause.
	MaxPause time.Duration
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
	}
	return &Transport{t, charges, o}, nil
}

// ByHost charges p for the host of a request, with its port if it has one.
func ByHost(p *throttler.Policy) func(*http.Request) []throttler.Charge {
	return func(r *http.Request) []throttler.Charge {
		return []throttler.Charge{p.Charge(strings.ToLower(r.URL.Host))}
	}
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
		pause := min(pauseOf(response, now), t.options.MaxPause)
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
		_, _ = io.CopyN(io.Discard, response.Body, 4096) // so that the connection can be used again
		_ = response.Body.Close()
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
	return response.StatusCode == http.StatusTooManyRequests || response.StatusCode == http.StatusServiceUnavailable
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
