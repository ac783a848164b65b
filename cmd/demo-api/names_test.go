package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/testkit/observertest"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/observe"
	weirotel "github.com/weir-go/weir/observe/otel"
	weirprom "github.com/weir-go/weir/observe/prom"
	"github.com/weir-go/weir/throttler/policies"
)

// parts are the Stats that the rules and the board query, and those with maps.
var parts = map[string]func() any{
	"fallback": func() any { return fallback.Stats{} },
	"leased":   func() any { return leased.Stats{} },
	"policies": func() any {
		file := map[string]int64{"file": 1}
		return policies.Stats{Version: file, Age: file, Policies: file, Overrides: file, Found: file, Wrong: file}
	},
	"refusals": func() any { return refusals.Stats{} },
	"rollout":  func() any { return rollout.Stats{Served: map[string]int64{"redis": 1}} },
	"synced": func() any {
		root := map[string]int64{"root": 1}
		return synced.Stats{Answers: map[string]bool{"root": true}, Lag: root, Unsent: root, Losses: root}
	},
}

// TestNamesByEitherWay checks that OpenTelemetry's exporter to Prometheus serves the same
// metrics as weirprom, with the same names, types and labels, and that the rules and the board
// query no others: so they fit both.
func TestNamesByEitherWay(t *testing.T) {
	direct, exported := prometheus.NewRegistry(), prometheus.NewRegistry()
	metrics, err := weirprom.New(direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(exported))
	if err != nil {
		t.Fatal(err)
	}
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	instruments, err := weirotel.New(&weirotel.Options{MeterProvider: provider})
	if err != nil {
		t.Fatal(err)
	}
	for name, stats := range parts {
		direct.MustRegister(weirprom.Stats(name, stats))
		if _, err := weirotel.RegisterStats(provider, name, stats); err != nil {
			t.Fatal(err)
		}
	}
	both := observe.All(metrics, instruments)
	observertest.Decide(t, both)
	observertest.Serve(both)
	both.Decided(t.Context(), observe.Decided{Op: observe.OpPeek, Policy: "core", Limit: -1})

	names := families(t, direct)
	got := families(t, exported)
	// OpenTelemetry marks failed round trips by an attribute.
	delete(names, "weir_round_trip_failures_total")
	for name, labels := range got {
		if strings.HasPrefix(name, "weir_round_trip_") {
			got[name] = strings.Replace(labels, " error_type", "", 1)
		}
	}
	if !maps.Equal(got, names) {
		t.Errorf("OpenTelemetry's exporter serves\n%v\nwant\n%v", lines(got), lines(names))
	}

	rules, err := os.ReadFile("../../observe/prom/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	asked := string(rules)
	for _, panel := range readBoard(t).Panels {
		for _, target := range panel.Targets {
			asked += "\n" + target.Expr
		}
	}
	for _, name := range regexp.MustCompile(`weir_\w+`).FindAllString(asked, -1) {
		family := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if names[family] == "" {
			t.Errorf("the rules or the board ask for %s, which is not served", name)
		}
	}
}

// families returns the type and the labels of each metric of weir, by its name.
func families(t *testing.T, registry *prometheus.Registry) map[string]string {
	t.Helper()
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, f := range gathered {
		if !strings.HasPrefix(f.GetName(), "weir_") {
			continue // target_info
		}
		labels := make(map[string]bool)
		for _, m := range f.Metric {
			for _, l := range m.Label {
				labels[l.GetName()] = !strings.HasPrefix(l.GetName(), "otel_scope_")
			}
		}
		maps.DeleteFunc(labels, func(_ string, own bool) bool { return !own })
		all[f.GetName()] = fmt.Sprint(f.GetType(), slices.Sorted(maps.Keys(labels)))
	}
	return all
}

func lines(families map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(families)) {
		all = append(all, name+" "+families[name])
	}
	return strings.Join(all, "\n")
}
