package xds_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/cmd/throttlerd/internal/xds"
	"github.com/weir-go/weir/cmd/throttlerd/internal/xds/xdstest"
	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/internal/testkit/testserver"
)

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%s: not so after 10 s", what)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The shapes of the two gateways' configurations: matches of headers, of addresses and of
// everything, in shadow mode and shared by routes, and a quota of a model and of a service.
func TestConfigurationsOfGateways(t *testing.T) {
	m := xdstest.NewManager(t, "envoy-ai-gateway-ratelimit")
	addr := m.Listen(testserver.FreeAddr(t)) // listened on again below
	m.Put("1", read(t, "gateway.json"), read(t, "gateway-shared.json"), read(t, "ai-gateway.json"))

	var mu sync.Mutex
	var set *descriptors.Set
	s := settings.XDS{NodeID: m.Node, ServerURL: addr, BackoffInitial: time.Millisecond, BackoffMax: 2 * time.Millisecond, XDSHeaders: map[string]string{"x-weir": "1"}}
	c, err := xds.NewClient(s, slog.New(slog.DiscardHandler), func(all []*envoyfile.File, err error) error {
		mu.Lock()
		defer mu.Unlock()
		var next *descriptors.Set
		if err == nil {
			next, err = descriptors.New(all, false, false)
		}
		if err == nil {
			set = next
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() { c.Watch(ctx); close(watched) }()
	defer func() { stop(); <-watched; _ = c.Close() }()

	rules := func() string {
		mu.Lock()
		defer mu.Unlock()
		var b strings.Builder
		if set != nil {
			for _, r := range set.Rules() {
				fmt.Fprintf(&b, "%s %v %v quota=%v shadow=%v meta=%v\n", r.Path, r.Limit.GetRequestsPerUnit(), r.Limit.GetUnit(), r.Quota, r.Shadow, r.Metadata.AsMap())
			}
		}
		return b.String()
	}
	const both = `ai-gateway-quota.backend_name_default/openai.model_name_override 1000000 DAY quota=true shadow=false meta=map[]
ai-gateway-quota.backend_name_default/openai.model_name_override_gpt-5.rule-0-x-team|blue-match-0_rule-0-x-team|blue-match-0.rule-0-x-user-match-1 5000 HOUR quota=true shadow=false meta=map[]
ai-gateway-quota.backend_name_default/openai.model_name_override_gpt-5.rule-1-match-0_rule-1-match-0 900 MINUTE quota=true shadow=true meta=map[]
ai-gateway-quota.backend_name_default/openai.model_name_override_gpt-5.rule-2-match--1_rule-2-match--1 100000 DAY quota=true shadow=false meta=map[tier:gold]
default/eg/http.httproute/default/backend/rule/0/match/0/*_httproute/default/backend/rule/0/match/0/*.masked_remote_address_192.168.0.0/16.remote_address 10 SECOND quota=false shadow=false meta=map[]
default/eg/http.httproute/default/backend/rule/0/match/0/*_httproute/default/backend/rule/0/match/0/*.rule-0-match-0_rule-0-match-0.rule-0-match-1.masked_remote_address_0.0.0.0/0 5 SECOND quota=false shadow=true meta=map[]
default/eg/http.httproute/default/backend/rule/0/match/0/*_httproute/default/backend/rule/0/match/0/*.rule-2-match--1_rule-2-match--1 3 HOUR quota=false shadow=false meta=map[]
default/eg/http.httproute/default/backend/rule/1/match/0/*_httproute/default/backend/rule/1/match/0/*.rule-0-match-0 7 MONTH quota=false shadow=false meta=map[]
default/shared.default/shared/rule/0_default/shared/rule/0.rule-0-match-0_rule-0-match-0 50 YEAR quota=false shadow=false meta=map[]
`
	eventually(t, "both configurations", func() bool { return rules() == both })

	// A wrong one is refused with its mistakes, and the last good one stays.
	m.Put("2", `{"name": "x", "domain": "x", "descriptors": [{"key": "a", "rateLimit": {"requestsPerUnit": 1}}, {"value": "b"}]}`)
	eventually(t, "a NACK", func() bool { return m.Refused() != "" })
	if got, want := m.Refused(), "x: descriptors[0].rate_limit.unit is wrong; it must be second, minute, hour, day, week, month or year\nx: descriptors[1].key is wrong; it must be a key, such as remote_address"; got != want {
		t.Errorf("NACK %s\nwant %s", got, want)
	}
	if rules() != both {
		t.Errorf("a wrong configuration is in force: %s", rules())
	}

	// After a restart of the server, the next one arrives.
	m.Stop()
	m.Put("3", `{"name": "x", "domain": "x", "descriptors": [{"key": "a", "rateLimit": {"requestsPerUnit": 1, "unit": "WEEK"}}]}`)
	m.Listen(addr)
	eventually(t, "the configuration after a restart", func() bool { return rules() == "x.a 1 WEEK quota=false shadow=false meta=map[]\n" })
	m.Put("4")
	eventually(t, "no configuration", func() bool { return rules() == "" })
}

func TestBadSettings(t *testing.T) {
	for _, s := range []settings.XDS{
		{ServerURL: "localhost:18000", UseTLS: true, ServerCA: "none"},
		{ServerURL: "localhost:18000", UseTLS: true, ServerCA: "client.go"},
		{ServerURL: "localhost:18000", UseTLS: true, ClientCert: "none"},
	} {
		if _, err := xds.NewClient(s, slog.Default(), nil); err == nil {
			t.Errorf("%+v: no error", s)
		}
	}
}
