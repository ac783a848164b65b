package main

import (
	"io"
	"net/http"
)

// probes adds Kubernetes' probes: whether the process is alive, and whether it is ready for
// calls. It is ready even if no store answers: no other process would do better.
func (sv *service) probes(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "alive\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case sv.ending.Load():
			http.Error(w, "ending", http.StatusServiceUnavailable)
		case sv.healthy() || sv.forward != nil && sv.rls.Set() == nil:
			_, _ = io.WriteString(w, "ready\n")
		default:
			http.Error(w, "there is no configuration yet; the log says why", http.StatusServiceUnavailable)
		}
	})
}
