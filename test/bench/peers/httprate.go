package peers

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-chi/httprate"
	httprateredis "github.com/go-chi/httprate-redis"
	"net"
	"strconv"
)

var httprateMemory = Peer{Name: "httprate", Open: func(c Config) (*Limiter, error) {
	return openHTTPRate(c), nil
}}

var httprateRedis = Peer{Name: "httprate-redis", Open: func(c Config) (*Limiter, error) {
	host, portText, err := net.SplitHostPort(c.Redis)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	return openHTTPRate(c, httprateredis.WithRedisLimitCounter(&httprateredis.Config{Host: host, Port: uint16(port)})), nil
}}

// openHTTPRate decides with OnLimit, which needs a response to write headers to: httprate has
// no call that decides without one.
func openHTTPRate(c Config, options ...httprate.Option) *Limiter {
	failed := func(w http.ResponseWriter, _ *http.Request, err error) {
		if w, ok := w.(*headerOnly); ok {
			w.err = err
			return
		}
		http.Error(w, err.Error(), http.StatusPreconditionRequired)
	}
	key := func(r *http.Request) (string, error) { return headerKey(r), nil }
	l := httprate.NewRateLimiter(int(c.Quota), c.Window, append(options, httprate.WithKeyFuncs(key), httprate.WithErrorHandler(failed))...)
	request := &http.Request{}
	return &Limiter{
		Take: func(_ context.Context, key string) (bool, error) {
			w := &headerOnly{header: http.Header{}}
			limited := l.OnLimit(w, request, key)
			return !limited, w.err
		},
		Wrap:  l.Handler,
		Close: func() {},
	}
}

// headerOnly is an http.ResponseWriter that keeps only the header.
type headerOnly struct {
	header http.Header
	err    error
}

func (w *headerOnly) Header() http.Header       { return w.header }
func (w *headerOnly) WriteHeader(int)           {}
func (w *headerOnly) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
