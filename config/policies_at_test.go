package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/policies"
	redispolicies "github.com/weir-go/weir/policies/redis"
	"github.com/weir-go/weir/quota"
)

// Policies written at the roots are in force in a program that reads them, also while one root
// is down.
func TestPoliciesAtRoots(t *testing.T) {
	var addrs []string
	var clients []redis.UniversalClient
	var first *testserver.RedisServer
	for range 3 {
		server := testserver.Redis(t)
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		t.Cleanup(func() { _ = client.Close() })
		addrs, clients, first = append(addrs, server.Addr), append(clients, client), server
	}
	store := redispolicies.NewRoots(clients, "")
	if _, err := store.Write(t.Context(), redispolicies.Change{
		Set:      []*quota.Policy{{Name: "core", Limits: []quota.Limit{{Quota: 7, Window: time.Hour}}}},
		Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}},
	}); err != nil {
		t.Fatal(err)
	}
	first.Stop()
	list := strings.Join(addrs, ", ")
	for _, text := range []string{
		"roots: [" + list + "]\npolicies_at: roots\npolicies: {core: 60 per 1h}\n",
		"policies_at: [" + list + "]\npolicies: {core: 60 per 1h}\n",
	} {
		c, err := config.Parse("weir.yaml", []byte(text), &config.Options{Table: new(policies.Table)})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); err != nil {
			t.Errorf("check: %v", err)
		}
		s, err := c.Open()
		if err != nil {
			t.Fatal(err)
		}
		core := s.Config.Policies["core"]
		if d, err := s.Throttler.Take(t.Context(), core.Charge("alice")); err != nil || d.Limit(0).Limit.Quota != 7 {
			t.Errorf("%v, %v; want the quota of the roots", d, err)
		}
		if d, err := s.Throttler.Take(t.Context(), core.Charge("mallory")); err != nil || d.Allowed || !d.Blocked {
			t.Errorf("%v, %v; want a block", d, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPoliciesAtProblems(t *testing.T) {
	for text, want := range map[string]string{
		"policies_at: roots": "weir.yaml:1: policies_at is roots, but roots is not set",
		"policies_at: []":    "policies_at is empty; it must be roots, or a list",
		"roots: [{primary: 'a:1', group: x}, {primary: 'b:1', group: y}]\npolicies_at: roots": "weir.yaml:2: policies_at is roots, which are several groups",
		"policies_at: [a]": "must be a host and a port",
	} {
		_, err := config.Parse("weir.yaml", []byte(text), &config.Options{Table: new(policies.Table)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	if _, err := config.Parse("weir.yaml", fmt.Append(nil, "policies_at: ['a:1']"), nil); err == nil || !strings.Contains(err.Error(), "no table of policies") {
		t.Errorf("without a table: %v", err)
	}
}
