// Package admin serves the HTTP pages of a rate limit service: the service itself as JSON, its
// health, and pages for operators.
package admin

import (
	"io"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weir-go/weir/cmd/throttlerd/internal/ports"
	"github.com/weir-go/weir/cmd/throttlerd/internal/rls"
)

// maxBody bounds a request.
const maxBody = 1 << 20

// Public returns /json and /healthcheck.
func Public(s *rls.Server, healthy func() bool) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/json", func(w http.ResponseWriter, r *http.Request) { serveJSON(w, r, s) })
	mux.HandleFunc("/healthcheck", func(w http.ResponseWriter, _ *http.Request) {
		if !healthy() {
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK")
	})
	return mux
}

// Debug returns the pages for operators.
func Debug(s *rls.Server, g prometheus.Gatherer) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/rlconfig", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if set := s.Set(); set != nil {
			_ = set.Dump(w) // the client has left
		}
	})
	mux.Handle("/metrics", Metrics(g))
	mux.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) { writeStats(w, s, g) })
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", ports.Unhurried(pprof.Profile))
	mux.HandleFunc("/debug/pprof/trace", ports.Unhurried(pprof.Trace))
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "/rlconfig: the rules in force\n/stats: counters, by the names of envoyproxy/ratelimit\n/metrics: for Prometheus\n/debug/pprof/: profiles\n/debug/weir: decisions, refused keys, servers and failures\n/debug/weir/client: one client: its counts, and what refuses it\n")
	})
	return mux
}

// Metrics returns the handler that Prometheus scrapes.
func Metrics(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{})
}

// serveJSON answers a request in the JSON form of protocol buffers. Its statuses are as in
// envoyproxy/ratelimit, except that a store that does not answer is a 503, not a 400.
func serveJSON(w http.ResponseWriter, r *http.Request, s *rls.Server) {
	var req rls.Request
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = protojson.Unmarshal(body, &req)
	}
	if err != nil {
		http.Error(w, http.StatusText(http.StatusBadRequest)+": "+err.Error(), http.StatusBadRequest)
		return
	}
	resp, err := s.ShouldRateLimitHTTP(r.Context(), &req)
	if err != nil {
		code := http.StatusBadRequest
		if rls.IsUnavailable(err) {
			code = http.StatusServiceUnavailable
		}
		http.Error(w, http.StatusText(code)+": "+err.Error(), code)
		return
	}
	text, err := protojson.Marshal(resp)
	if err != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if rls.IsRefusal(resp) {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(text)
}
