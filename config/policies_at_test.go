package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// A program has the policies and overrides of a server that it reads, such as a replica of the
// one that they are written to.
func TestPoliciesAt(t *testing.T) {
	writer := testserver.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: writer.Addr})
	t.Cleanup(func() { _ = client.Close() })
	if _, err := redispolicies.NewStore(client, "").Write(t.Context(), redispolicies.Change{
		Set:      []*quota.Policy{{Name: "core", Limits: []quota.Limit{{Quota: 7, Window: time.Hour}}}},
		Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}},
	}); err != nil {
		t.Fatal(err)
	}
	replica := testserver.RedisReplica(t, writer)
	for _, at := range []string{writer.Addr, "redis://" + replica.Addr, "{primary: " + replica.Addr + "}"} {
		c, err := config.Parse("weir.yaml", []byte("policies_at: "+at+"\npolicies: {core: 60 per 1h}\n"), &config.Options{Table: new(policies.Table)})
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
			t.Errorf("%s: %v, %v; want the server's quota", at, d, err)
		}
		if d, err := s.Throttler.Take(t.Context(), core.Charge("mallory")); err != nil || d.Allowed || !d.Blocked {
			t.Errorf("%s: %v, %v; want a block", at, d, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPoliciesAtProblems(t *testing.T) {
	for text, want := range map[string]string{
		"policies_at: roots":          `weir.yaml:1: policies_at is "roots"; it must be a host and a port`,
		"policies_at: ['a:1', 'b:1']": "weir.yaml:1: policies_at is a list; it must be a mapping with primary",
		"policies_at: {}":             "policies_at.primary is missing; it must be a host and a port",
	} {
		_, err := config.Parse("weir.yaml", []byte(text), &config.Options{Table: new(policies.Table)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	if _, err := config.Parse("weir.yaml", []byte("policies_at: 'a:1'"), nil); err == nil || !strings.Contains(err.Error(), "no table of policies") {
		t.Errorf("without a table: %v", err)
	}
}
