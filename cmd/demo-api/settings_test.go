package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-go/weir/config"
)

// parse reads a configuration of the demo.
func parse(name, text string) (*settings, *config.Config, error) {
	own := defaultSettings()
	c, err := config.Parse(name, []byte(text), &config.Options{Policies: routePolicies, Program: own})
	return own, c, err
}

func TestSettings(t *testing.T) {
	own, _, err := parse("demo.yaml", `
listen: "[::1]:9000"
tokens: {key-1: {subject: alice}, key-2: {subject: alice}, bob: {}}
trusted_proxies: [127.0.0.0/8, "fd00::/8"]
debug_listen: off
`)
	if err != nil {
		t.Fatal(err)
	}
	want := &settings{Listen: "[::1]:9000", Tokens: tokens{"key-1": {Subject: "alice"}, "key-2": {Subject: "alice"}, "bob": {}}}
	for _, n := range []string{"127.0.0.0/8", "fd00::/8"} {
		want.TrustedProxies = append(want.TrustedProxies, config.ProxyNetwork(netip.MustParsePrefix(n)))
	}
	if !reflect.DeepEqual(own, want) {
		t.Errorf("got %+v, want %+v", own, want)
	}
	for token, subject := range map[string]string{"key-1": "alice", "key-2": "alice", "bob": "bob", "eve": "", "": ""} {
		if got, ok := own.Tokens.subject(token); ok != (subject != "") || ok && got != subject {
			t.Errorf("the subject of token %q is %q, %v; want %q", token, got, ok, subject)
		}
	}
	if own, _, err := parse("demo.yaml", "{}"); err != nil || !reflect.DeepEqual(own, defaultSettings()) {
		t.Errorf("got %+v, error %v, want the defaults", own, err)
	}
}

func TestSettingsErrorsSayWhatWouldBeRight(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{
			"trusted proxy is an address", "trusted_proxies:\n  - 10.0.0.0/8\n  - 192.0.2.7\n",
			`demo.yaml:3: trusted_proxies[1] is "192.0.2.7"; it must be an address range such as 10.0.0.0/8 or 192.0.2.7/32`,
		}, {
			"trusting the world", "trusted_proxies: [0.0.0.0/0]\n",
			`demo.yaml:1: trusted_proxies[0] is "0.0.0.0/0"; it must be your proxies' own range, at most a /8 (of IPv6 a /7): a client inside it could choose the address that it is counted by`,
		}, {
			"trusting the world of IPv6", "trusted_proxies: ['::/0']\n",
			`demo.yaml:1: trusted_proxies[0] is "::/0"; it must be your proxies' own range, at most a /8 (of IPv6 a /7): a client inside it could choose the address that it is counted by`,
		}, {
			"trusting half of the world", "trusted_proxies: [128.0.0.0/1]\n",
			`demo.yaml:1: trusted_proxies[0] is "128.0.0.0/1"; it must be your proxies' own range, at most a /8 (of IPv6 a /7): a client inside it could choose the address that it is counted by`,
		}, {
			"trusting the world in disguise", "trusted_proxies: ['::ffff:0.0.0.0/96']\n",
			`demo.yaml:1: trusted_proxies[0] is "::ffff:0.0.0.0/96"; it must be in the form of IPv4, such as 10.0.0.0/8`,
		}, {
			"a proxy's address, or its range", "trusted_proxies: [10.1.2.3/8]\n",
			`demo.yaml:1: trusted_proxies[0] is "10.1.2.3/8"; it must be 10.0.0.0/8 for the range, or 10.1.2.3/32 for the one address`,
		}, {
			"tokens that are a list", "tokens: [a]\n",
			`demo.yaml:1: tokens is a list; it must be any, or a mapping of tokens, such as {demo-alice: {subject: alice}}`,
		}, {
			"tokens that are a word", "tokens: all\n",
			`demo.yaml:1: tokens is "all"; it must be any, or a mapping of tokens, such as {demo-alice: {subject: alice}}`,
		}, {
			"a token that cannot be sent", "tokens: {'a b': {}}\n",
			`demo.yaml:1: tokens: a key is "a b"; it must be letters, digits and - . _ ~ + /, with = at its end alone, to be sent`,
		}, {
			"a token of a list", "tokens: {a: {subject: [b]}}\n",
			`demo.yaml:1: tokens.a.subject is a list; it must be text`,
		}, {
			"a debug address without a host", "debug_listen: :8081\n",
			`demo.yaml:1: debug_listen is ":8081"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"one address for both listeners", "listen: 127.0.0.1:81\ndebug_listen: 127.0.0.1:81\n",
			`demo.yaml:2: debug_listen is "127.0.0.1:81"; it must be another address than listen`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			own, _, err := parse("demo.yaml", test.text)
			if err == nil {
				t.Fatalf("got %+v, want an error", own)
			}
			if err.Error() != test.want {
				t.Errorf("got  %s\nwant %s", err, test.want)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	for text, want := range map[string]string{
		"tokens: any\n":                "tokens is any: every invented token gets a fresh quota; that is for tests and load, not for clients",
		"debug_listen: 0.0.0.0:8081\n": "debug_listen is 0.0.0.0:8081, which is not on loopback: other machines may reach it, and it has no password",
		"debug_listen: localhost:0\n":  "",
		"debug_listen: '[::1]:0'\n":    "",
		"policies: {core: {limits: [{quota: 60, window: 1h, algorithm: leaky-bucket}]}}\n":                `policy "core": limit 0, 60 per 1h0m0s (leaky-bucket), lets a request wait up to 59m0s for its start, longer than the server's write timeout of 30s; set max_wait`,
		"policies: {core: {limits: [{quota: 60, window: 1m, algorithm: leaky-bucket, burst: 21}]}}\n":     `policy "core": limit 0, 60 per 1m0s (leaky-bucket), lets a request wait up to 20s for its start, longer than the 10s that requests in flight have when the demo ends; set max_wait`,
		"policies: {core: {limits: [{quota: 60, window: 1m, algorithm: leaky-bucket, max_wait: 10s}]}}\n": "",
	} {
		own, c, err := parse("demo.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(warnings(c, own), "\n"); got != want {
			t.Errorf("%sgot  %q\nwant %q", text, got, want)
		}
	}
}

// A lease saves nothing if a decision also charges an exact policy.
func TestLeasedBesideExact(t *testing.T) {
	const redis = "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:6379}]}\npolicies:\n"
	const core, secondary = "  core: {limits: [{quota: 20, window: 1h}], consistency: %s}\n", "  secondary: {limits: [{quota: 20, window: 1h}], consistency: %s}\n"
	for text, want := range map[string]string{
		fmt.Sprintf(redis+core, "leased"):                    `policy "core" is leased and "secondary" is exact`,
		fmt.Sprintf(redis+core+secondary, "exact", "leased"): `policy "secondary" is leased and "core" is exact`,
		fmt.Sprintf(redis+core, "exact"):                     "",
		fmt.Sprintf(redis+core+secondary, "leased", "leased") + "  search: {limits: [{quota: 20, window: 1h}], consistency: leased}\n  auth.createToken: {limits: [{quota: 20, window: 1h}], consistency: leased}\n": "",
		redis + "  org: {limits: [{quota: 20, window: 1h}], consistency: leased}": `policy "org" is leased and "org.member" is exact`,
	} {
		_, c, err := parse("demo.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(routeWarnings(c), "\n"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: got warnings %q, want %q", text, got, want)
		}
	}
}
