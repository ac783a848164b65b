package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// overrider writes to the table of policies, as weirctl does.
type overrider struct {
	t     *testing.T
	store *redispolicies.Store
}

func newOverrider(t *testing.T, addr string) *overrider {
	t.Helper()
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addr}, ReadTimeout: 20 * time.Second, WriteTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return &overrider{t, redispolicies.NewStore(client, "")}
}

func (o *overrider) override(v policies.Override) {
	o.t.Helper()
	if _, err := o.store.Write(o.t.Context(), redispolicies.Change{Override: []policies.Override{v}}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *overrider) remove(policy, key string) {
	o.t.Helper()
	if _, err := o.store.Write(o.t.Context(), redispolicies.Change{RemoveOverrides: []policies.Override{{Policy: policy, Key: key}}}); err != nil {
		o.t.Fatal(err)
	}
}

func limits(t *testing.T, texts ...string) (all []quota.Limit) {
	t.Helper()
	for _, text := range texts {
		l, err := quota.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// An override in the Redis of the counts is in force within two seconds, and continues the
// count.
func TestOverridesOfDescriptors(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, level := range []string{"exact", "leased", "synced"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel() // its processes take their changes once a second
			server := testserver.Redis(t)
			text := strings.ReplaceAll(perYear, "requests_per_unit: 3", "requests_per_unit: 3, consistency: "+level)
			d := started(t, text, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr)
			o := newOverrider(t, server.Addr)
			for _, want := range []int{2, 1, 0, -1} {
				d.remains("alice", want)
			}
			o.override(policies.Override{Policy: "d.user", Key: "d?user=alice", Limits: limits(t, "10 per 8760h aligned")})
			d.remains("alice", 6) // the 7th of 10
			o.override(policies.Override{Policy: "d.user", Key: "d?user=alice", Blocked: true, Until: time.Now().Add(time.Hour)})
			d.remains("alice", -1)
			if _, text := d.page("http://"+d.http+"/json", `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}`); !strings.Contains(text, "Retry-After") {
				t.Errorf("%s; want when the block ends", text)
			}
			o.override(policies.Override{Policy: "d.user", Key: "d?user=alice", Unlimited: true})
			d.remains("alice", 1<<32-1)
			o.remove("d.user", "d?user=alice")
			d.remains("alice", -1)
			d.remains("bob", 2)
		})
	}
}

// An override of two limits shows the one that binds; rules without a count can be overridden,
// too.
func TestOverridesOfAnyRule(t *testing.T) {
	t.Parallel() // it waits most of the time
	server := testserver.Redis(t)
	d := started(t, `
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
`, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr)
	gets(t, http.DefaultClient, "http://"+d.http+"/readyz", 200)
	o := newOverrider(t, server.Addr)
	ask := func(key, want string) {
		t.Helper()
		eventually(t, func() error {
			_, text := d.page("http://"+d.http+"/json", fmt.Sprintf(`{"domain":"d","descriptors":[{"entries":[{"key":%q,"value":"alice"}]}]}`, key))
			if text = strings.ReplaceAll(text, " ", ""); !strings.Contains(text, want) {
				return fmt.Errorf("%s: %s; want %s", key, text, want)
			}
			return nil
		})
	}
	ask("user", `"overallCode":"OVER_LIMIT"`)
	o.override(policies.Override{Policy: "d.user", Key: "d?user=alice", Limits: limits(t, "5 per 8760h aligned", "3 per 24h aligned")})
	ask("user", `{"requestsPerUnit":3,"unit":"DAY"},"limitRemaining":2`)
	o.override(policies.Override{Policy: "d.free", Key: "d?free=alice", Blocked: true})
	ask("free", `"overallCode":"OVER_LIMIT"`)
	o.override(policies.Override{Policy: "d.trial", Key: "d?trial=alice", Blocked: true})
	ask("trial", `"overallCode":"OVER_LIMIT"`)
}

// A rule for one value continues the count of that client.
func TestARuleForOneValueContinues(t *testing.T) {
	t.Parallel() // it waits most of the time
	d := started(t, perYear)
	for _, want := range []int{2, 1, 0, -1} {
		d.remains("alice", want)
	}
	d.write(perYear + "  - {key: user, value: alice, rate_limit: {unit: year, requests_per_unit: 8}}\n")
	d.remains("alice", 4)
	d.remains("bob", 2)
	d.write(perYear)
	d.remains("alice", -1)
}

// Shadow rules don't refuse, so their refusals are neither in the log nor on the page.
func TestShadowRulesAreNoRefusals(t *testing.T) {
	d := started(t, strings.ReplaceAll(perYear, "{key: user,", "{key: user, shadow_mode: true,"))
	for range 5 {
		if _, err := d.ask("alice"); err != nil {
			t.Fatal(err)
		}
	}
	if _, text := d.page("http://"+d.debug+"/debug/weir?format=refused", ""); strings.Contains(text, `"policy"`) {
		t.Errorf("%s; want no key", text)
	}
	if strings.Contains(d.log.String(), "refusals") {
		t.Errorf("%s; want no refusals", d.log)
	}
}

// The limits of forward auth come from the file of WEIR_CONFIG as it is now, and from overrides.
func TestForwardAuthWithoutARestart(t *testing.T) {
	t.Parallel() // it waits most of the time
	server, addr := testserver.Redis(t), testserver.FreeAddr(t)
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write := func(limit string) {
		t.Helper()
		text := fmt.Sprintf("backend: redis\nredis: {shards: [{name: a, primary: '%s'}]}\npolicies: {core: %s}\nforward_auth: {listen: '%s', trusted_proxies: [127.0.0.0/8], rules: [{charge: [core by ip]}]}\n", server.Addr, limit, addr)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("2 per 8760h")
	d := started(t, perYear, "WEIR_CONFIG="+file)
	o := newOverrider(t, server.Addr)
	ask := func(status int, header string) {
		t.Helper()
		eventually(t, func() error {
			r, err := http.NewRequest(http.MethodGet, "http://"+addr+"/", nil)
			if err != nil {
				return err
			}
			for name, value := range map[string]string{"Method": "GET", "Host": "example.com", "Uri": "/", "For": "203.0.113.7"} {
				r.Header.Set("X-Forwarded-"+name, value)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				return err
			}
			_ = resp.Body.Close()
			if got := resp.Header.Get("X-RateLimit-Limit") + " " + resp.Header.Get("X-RateLimit-Remaining"); resp.StatusCode != status || !strings.HasPrefix(got, header) {
				return fmt.Errorf("%d, limit and remaining are %s; want %d, %s", resp.StatusCode, got, status, header)
			}
			return nil
		})
	}
	ask(200, "2 1")
	ask(200, "2 0")
	ask(429, "2 0")
	write("5 per 8760h")
	ask(200, "5 2")
	o.override(policies.Override{Policy: "core", Key: "ip:203.0.113.7", Limits: limits(t, "50 per 8760h")})
	ask(200, "50 4")
	o.override(policies.Override{Policy: "core", Key: "ip:203.0.113.7", Blocked: true})
	ask(429, "")
	o.remove("core", "ip:203.0.113.7")
	d.remains("alice", 2)
}
