package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weir-go/weir/cmd/throttlerd/internal/rls"
)

// writeStats writes the counters, a line for each, by the names that envoyproxy/ratelimit gives
// them without a mapping.
func writeStats(w http.ResponseWriter, s *rls.Server, g prometheus.Gatherer) {
	families, err := g.Gather()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var lines []string
	compatible := s.Stats(func(name string, value uint64) { lines = append(lines, fmt.Sprintf("%s: %d", name, value)) })
	for _, f := range families {
		if compatible && strings.HasPrefix(f.GetName(), "ratelimit_service_rate_limit_") {
			continue
		}
		for _, m := range f.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if name := statOf(f.GetName(), m.GetLabel()); name != "" {
				lines = append(lines, fmt.Sprintf("%s: %.0f", name, value))
			}
		}
	}
	slices.Sort(lines)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, line := range lines {
		_, _ = fmt.Fprintln(w, line) // the client has left
	}
}

// statOf returns the name of a counter, or "" if envoyproxy/ratelimit has none like it.
func statOf(name string, labels []*dto.LabelPair) string {
	label := func(name string) string {
		for _, l := range labels {
			if l.GetName() == name {
				return strings.NewReplacer(":", "_", "|", "_").Replace(l.GetValue())
			}
		}
		return ""
	}
	if name, ok := strings.CutPrefix(name, "ratelimit_localcache_"); ok {
		return "ratelimit.localcache." + name
	}
	name, ok := strings.CutPrefix(name, "ratelimit_service_")
	if !ok {
		return ""
	}
	switch kind, ofLimit := strings.CutPrefix(name, "rate_limit_"); {
	case ofLimit:
		parts := []string{"ratelimit.service.rate_limit"}
		for _, l := range []string{"domain", "key1", "key2"} {
			if value := label(l); value != "" {
				parts = append(parts, value)
			}
		}
		return strings.Join(append(parts, kind), ".")
	case name == "should_rate_limit_error":
		return "ratelimit.service.call.should_rate_limit." + label("err_type")
	case name == "total_requests":
		return "ratelimit_server." + label("grpc_method") + ".total_requests"
	case name == "config_load_success", name == "config_load_error", name == "global_shadow_mode":
		return "ratelimit.service." + name
	}
	return ""
}
