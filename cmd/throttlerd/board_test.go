package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// board has the fields of deploy/grafana.json that matter to Prometheus.
type board struct {
	Panels []struct {
		Type, Title, Description string
		Targets                  []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
}

// A real Prometheus that scrapes the service by docs/envoy/prometheus.yml has a value for each
// query of the board, and for each choice at its top.
func TestBoard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("deploy/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile("../../docs/envoy/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	metrics := testserver.FreeAddr(t)
	d := started(t, perYear+"  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}\n", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+metrics)
	d.remains("a", 2)
	server := testserver.Prometheus(t, strings.NewReplacer("127.0.0.1:9090", metrics, "5s", "100ms").Replace(string(config)), "").Addr
	users := 0
	everything := func() { // something for each panel
		users++
		for range 5 { // within the limit, near it and over it
			_, _ = d.ask(fmt.Sprint("user ", users))
			d.page("http://"+d.http+"/json", `{"domain": "d", "descriptors": [{"entries": [{"key": "shadow"}]}]}`)
		}
		_, _ = d.rls.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "d"})
		d.page("http://"+d.http+"/json", `{"domain": "other", "descriptors": [{"entries": [{"key": "user"}]}]}`)
	}
	has := func(path string, query url.Values) error {
		resp, err := http.Get("http://" + server + path + "?" + query.Encode())
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var answer struct {
			Status string
			Data   json.RawMessage
		}
		if err == nil {
			err = json.Unmarshal(body, &answer)
		}
		if err != nil || answer.Status != "success" {
			return fmt.Errorf("%s %s: %s %w", path, query, body, err)
		}
		if !strings.Contains(string(body), `"value":`) && path == "/api/v1/query" || strings.Contains(string(body), `"NaN"`) || strings.HasSuffix(string(body), "[]}") {
			return fmt.Errorf("%s %s: %s; want values", path, query, body)
		}
		return nil
	}
	chosen := regexp.MustCompile(`\$(job|instance|domain)`)
	for _, p := range b.Panels {
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("the panel %q has no description, or no query", p.Title)
		}
		for _, target := range p.Targets {
			expr := strings.ReplaceAll(chosen.ReplaceAllString(target.Expr, ".+"), "$__rate_interval", "10s") // a busy machine scrapes twice in that time
			eventually(t, func() error {
				everything()
				return has("/api/v1/query", url.Values{"query": {expr}})
			})
		}
	}
	for _, v := range b.Templating.List {
		if metric, label, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(v.Query, "label_values("), ")"), ", "+v.Name); v.Type == "query" && (!ok || label != "") {
			t.Errorf("the choice %s is %s", v.Name, v.Query)
		} else if ok {
			if err := has("/api/v1/label/"+v.Name+"/values", url.Values{"match[]": {chosen.ReplaceAllString(metric, ".+")}}); err != nil {
				t.Error(err)
			}
		}
	}
}
