package main

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

func TestConfigErrorsSayWhatWouldBeRight(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{
			"unknown key", "listen: 127.0.0.1:80\nlisten_on: 3\n",
			`demo.yaml:2: unknown key listen_on; the keys here are listen, backend, redis, memcached, flags, shadow, policies, dry_runs, trusted_proxies, deadline, on_failure`,
		}, {
			"unknown key of a limit", "policies:\n  core:\n    limits:\n      - quta: 4\n",
			`demo.yaml:4: unknown key quta; the keys here are quota, window, algorithm, aligned, burst, max_wait`,
		}, {
			"unknown key of a policy", "policies:\n  a.b: {limit: 3}\n",
			`demo.yaml:2: unknown key limit; the keys here are limits`,
		}, {
			"unknown key of a shard", "backend: redis\nredis:\n  shards:\n    - {nam: a}\n",
			`demo.yaml:4: unknown key nam; the keys here are name, primary, replicas`,
		}, {
			"unknown key of redis", "backend: redis\nredis: {shard: []}\n",
			`demo.yaml:2: unknown key shard; the keys here are shards, resharded`,
		}, {
			"key twice", "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n",
			`demo.yaml:2: mapping key "listen" already defined at [1:1]`,
		}, {
			"not YAML", "listen: [127\n",
			`demo.yaml:1: sequence end token ']' not found`,
		}, {
			"two documents", "listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:2\n",
			`demo.yaml:3: a second document begins here; one file is one configuration`,
		}, {
			"listen without port", "listen: localhost\n",
			`demo.yaml:1: listen is "localhost"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"listen with a bad port", "listen: localhost:99999\n",
			`demo.yaml:1: listen is "localhost:99999"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"unknown backend", "backend: etcd\n",
			`demo.yaml:1: backend is "etcd"; it must be memory, redis, redis-resharded or memcached`,
		}, {
			"redis and memory", "redis: {shards: [{name: a, primary: 127.0.0.1:1}]}\n",
			`demo.yaml:1: redis is set, but the backend is memory; write backend: redis, or flags: FILE to move clients between them, or leave redis out`,
		}, {
			"memcached and redis", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nmemcached: {servers: [127.0.0.1:2]}\n",
			`demo.yaml:3: memcached is set, but the backend is redis; write backend: memcached, or flags: FILE to move clients between them, or leave memcached out`,
		}, {
			"no servers", "backend: memcached\nmemcached: {servers: []}\n",
			`demo.yaml:2: memcached.servers is empty; the memcached backend needs at least one server, such as 127.0.0.1:11211`,
		}, {
			"server without a port", "backend: memcached\nmemcached:\n  servers: [localhost]\n",
			`demo.yaml:3: memcached.servers[0].address is "localhost"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"server twice", "backend: memcached\nmemcached:\n  servers:\n    - 127.0.0.1:1\n    - 127.0.0.1:1\n",
			`demo.yaml:5: memcached.servers[1] is named "127.0.0.1:1" as memcached.servers[0] is; keys find their server by its name`,
		}, {
			"unknown key of a server", "backend: memcached\nmemcached:\n  servers:\n    - {name: a, port: 1}\n",
			`demo.yaml:4: unknown key port; the keys here are name, address`,
		}, {
			"flags with nowhere to go", "flags: flags.json\n",
			`demo.yaml:1: flags is set, but there is no backend beside memory to move clients to; set redis or memcached`,
		}, {
			"unknown shadow", "shadow: etcd\n",
			`demo.yaml:1: shadow is "etcd"; it must be memory, redis, redis-resharded or memcached`,
		}, {
			"shadow that is not there", "shadow: redis\n",
			`demo.yaml: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"dry run beside no route", "dry_runs:\n  cor: {limits: [{quota: 1, window: 1s}]}\n",
			`demo.yaml:2: dry_runs.cor is beside no route; the routes use core, search, auth.createToken, org, org.member`,
		}, {
			"dry run without a window", "dry_runs:\n  core:\n    limits:\n      - {quota: 1}\n",
			`demo.yaml:4: dry_runs.core.limits[0].window is missing; it must be a duration above zero, with its unit, such as 50ms, 60s or 1h`,
		}, {
			"no shards", "backend: redis\n",
			`demo.yaml: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"no shards in the list", "backend: redis\nredis:\n  shards: []\n",
			`demo.yaml:3: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"shard without a name", "backend: redis\nredis:\n  shards:\n    - {primary: 127.0.0.1:1}\n",
			`demo.yaml:4: redis.shards[0].name is missing; keys find their shard by its name`,
		}, {
			"shard name twice", "backend: redis\nredis:\n  shards:\n    - {name: a, primary: 127.0.0.1:1}\n    - {name: a, primary: 127.0.0.1:2}\n",
			`demo.yaml:5: redis.shards[1].name is "a"; it must be another than that of redis.shards[0]: keys find their shard by its name`,
		}, {
			"shard without a primary", "backend: redis\nredis:\n  shards:\n    - {name: a}\n",
			`demo.yaml:4: redis.shards[0].primary is missing; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"replica without a port", "backend: redis\nredis:\n  shards:\n    - name: a\n      primary: 127.0.0.1:1\n      replicas: [127.0.0.1:2, localhost]\n",
			`demo.yaml:6: redis.shards[0].replicas[1] is "localhost"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"policy without limits", "policies:\n  core: {limits: []}\n",
			`demo.yaml:2: policy "core" has 0 limits; it must have from 1 to 16`,
		}, {
			"policy with nothing", "policies:\n  core:\n",
			`demo.yaml:2: policy "core" has 0 limits; it must have from 1 to 16`,
		}, {
			"policy name", "policies:\n  two words: {limits: [{quota: 1, window: 1s}]}\n",
			`demo.yaml:2: policy name is "two words"; it must be 1 to 64 letters, digits, and . _ - / :`,
		}, {
			"quota is no number", "policies:\n  a.b:\n    limits:\n      - window: 60s\n        quota: many\n",
			`demo.yaml:5: policies.'a.b'.limits[0].quota is "many"; it must be a whole number, 1 or more`,
		}, {
			"quota is no whole number", "policies: {core: {limits: [{quota: 4.5, window: 60s}]}}\n",
			`demo.yaml:1: policies.core.limits[0].quota is "4.5"; it must be a whole number, 1 or more`,
		}, {
			"quota is beyond int64", "policies: {core: {limits: [{quota: 99999999999999999999, window: 60s}]}}\n",
			`demo.yaml:1: policies.core.limits[0].quota is "99999999999999999999"; it must be a whole number, 1 or more`,
		}, {
			"quota below zero", "policies: {core: {limits: [{quota: -1, window: 60s}]}}\n",
			`demo.yaml:1: policies.core.limits[0].quota is "-1"; it must be a whole number, 1 or more`,
		}, {
			"quota missing", "policies:\n  core:\n    limits:\n      - window: 60s\n",
			`demo.yaml:4: policies.core.limits[0].quota is missing; it must be a whole number, 1 or more`,
		}, {
			"window without a unit", "policies: {core: {limits: [{quota: 1, window: 60}]}}\n",
			`demo.yaml:1: policies.core.limits[0].window is "60"; it must be a duration above zero, with its unit, such as 50ms, 60s or 1h`,
		}, {
			"window missing", "policies: {core: {limits: [{quota: 1}]}}\n",
			`demo.yaml:1: policies.core.limits[0].window is missing; it must be a duration above zero, with its unit, such as 50ms, 60s or 1h`,
		}, {
			"window too long", "policies:\n  core:\n    limits:\n      - {quota: 1, window: 1h}\n      - {quota: 2, window: 9000h}\n",
			`demo.yaml:5: policy "core": limit 1: window is 9000h0m0s; it must be from 1ms to 8784h0m0s (366 days)`,
		}, {
			"two limits of one window", "policies:\n  core: {limits: [{quota: 1, window: 1h}, {quota: 2, window: 1h}]}\n",
			`demo.yaml:2: policy "core": limits 0 and 1 are both a fixed-window of 1h0m0s; only the smaller quota could ever refuse, so keep that one`,
		}, {
			"unknown algorithm", "policies:\n  core:\n    limits:\n      - quota: 1\n        window: 1h\n        algorithm: gcra\n",
			`demo.yaml:6: algorithm is "gcra"; it must be one of ["fixed-window" "sliding-window" "sliding-log" "token-bucket" "leaky-bucket"]`,
		}, {
			"aligned is no truth", "policies: {core: {limits: [{quota: 1, window: 1h, aligned: perhaps}]}}\n",
			`demo.yaml:1: policies.core.limits[0].aligned is "perhaps"; it must be true or false`,
		}, {
			"burst of a window", "policies: {core: {limits: [{quota: 1, window: 1h, burst: 3}]}}\n",
			`demo.yaml:1: policy "core": limit 0: burst is 3; only a token-bucket or a leaky-bucket has one, not a fixed-window`,
		}, {
			"burst of zero", "policies: {core: {limits: [{quota: 1, window: 1h, algorithm: token-bucket, burst: 0}]}}\n",
			`demo.yaml:1: policies.core.limits[0].burst is "0"; it must be a whole number, 1 or more`,
		}, {
			"max_wait without a unit", "policies: {core: {limits: [{quota: 1, window: 1h, algorithm: leaky-bucket, max_wait: 2}]}}\n",
			`demo.yaml:1: policies.core.limits[0].max_wait is "2"; it must be a duration above zero, with its unit, such as 50ms, 60s or 1h`,
		}, {
			"trusted proxy is an address", "trusted_proxies:\n  - 10.0.0.0/8\n  - 192.0.2.7\n",
			`demo.yaml:3: trusted_proxies[1] is "192.0.2.7"; it must be an address range such as 10.0.0.0/8 or 192.0.2.7/32`,
		}, {
			"deadline of zero", "deadline: 0s\n",
			`demo.yaml:1: deadline is "0s"; it must be a duration above zero, with its unit, such as 50ms, 60s or 1h`,
		}, {
			"unknown failure policy", "on_failure: local\n",
			`demo.yaml:1: on_failure is "local"; it must be open or closed`,
		}, {
			"all at once", "backend: disk\non_failure: no\n",
			"demo.yaml:1: backend is \"disk\"; it must be memory, redis, redis-resharded or memcached\ndemo.yaml:2: on_failure is \"no\"; it must be open or closed",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := parseConfig("demo.yaml", []byte(test.text))
			if err == nil {
				t.Fatalf("got %+v, want an error", c)
			}
			if err.Error() != test.want {
				t.Errorf("got  %s\nwant %s", err, test.want)
			}
		})
	}
}

// TestConfigOfAnotherShape holds what only YAML's decoder finds: its words are
// its own, the line is ours.
func TestConfigOfAnotherShape(t *testing.T) {
	for text, line := range map[string]string{
		"policies: 3\n":                    "demo.yaml:1: ",
		"- a\n- b\n":                       "demo.yaml:1: ",
		"\nlisten: {a: b}\n":               "demo.yaml:2: ",
		"policies:\n core: {limits: {}}\n": "demo.yaml:2: ",
		"deadline: 50ms\n\tlisten: x\n":    "demo.yaml:",
		"redis: [a]\n":                     "demo.yaml:1: ",
		"trusted_proxies: !0\n0\n":         "demo.yaml: this YAML cannot be read",
	} {
		if c, err := parseConfig("demo.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), line) {
			t.Errorf("%q: got %+v, error %v, want one that begins with %q", text, c, err, line)
		}
	}
}

func TestConfigIsReadWhole(t *testing.T) {
	const text = `
listen: "[::1]:9000"
backend: redis
redis:
  shards:
    - {name: a, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002]}
    - {name: b, primary: 127.0.0.1:7003}
  resharded:
    - {name: a, primary: 127.0.0.1:7005}
memcached: {servers: [127.0.0.1:7006, {name: m, address: 127.0.0.1:7007}]}
flags: flags.json
shadow: memory
dry_runs:
  core: {limits: [{quota: 4, window: 90s}]}
policies:
  core: {limits: [{quota: 5, window: 90s, aligned: true}]}
  burst: {limits: [{quota: 10, window: 1s, algorithm: token-bucket, burst: 30}]}
  queue: {limits: [{quota: 10, window: 1s, algorithm: leaky-bucket, max_wait: 2s}]}
trusted_proxies: [127.0.0.0/8]
deadline: 20ms
on_failure: closed
`
	got, err := parseConfig("etc/demo.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := defaultConfig()
	want.listen = "[::1]:9000"
	want.backends = backendsConfig{
		serving: "redis",
		shards: []shardConfig{
			{name: "a", primary: "127.0.0.1:7001", replicas: []string{"127.0.0.1:7002"}},
			{name: "b", primary: "127.0.0.1:7003"},
		},
		resharded: []shardConfig{{name: "a", primary: "127.0.0.1:7005"}},
		servers:   []serverConfig{{"127.0.0.1:7006", "127.0.0.1:7006"}, {"m", "127.0.0.1:7007"}},
		flags:     filepath.Join("etc", "flags.json"),
		shadow:    "memory",
	}
	want.dryRuns["core"] = &throttler.Policy{Name: "core.dry-run", Limits: []throttler.Limit{{Quota: 4, Window: 90 * time.Second}}}
	for name, l := range map[string]throttler.Limit{
		"core":  {Quota: 5, Window: 90 * time.Second, Aligned: true},
		"burst": {Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 30},
		"queue": {Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket, MaxWait: 2 * time.Second},
	} {
		want.policies[name] = &throttler.Policy{Name: name, Limits: []throttler.Limit{l}}
	}
	want.trustedProxies = []string{"127.0.0.0/8"}
	want.deadline = 20 * time.Millisecond
	want.failClosed = true
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	w := got.warnings()
	if len(w) != 3 || !strings.Contains(w[0], `"burst" limits no route`) || !strings.Contains(w[1], `"queue" limits no route`) ||
		w[2] != "the flags' file is wrong, until it is right all clients are on redis: etc/flags.json: no such file or directory" {
		t.Errorf("warnings: got %q, want three, about burst, queue and the flags", w)
	}
}

func TestEmptyConfigIsTheDefault(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "policies: {}\n"} {
		got, err := parseConfig("demo.yaml", []byte(text))
		if err != nil || !reflect.DeepEqual(got, defaultConfig()) {
			t.Errorf("%q: got %+v, error %v, want the defaults", text, got, err)
		}
	}
	if w := defaultConfig().warnings(); len(w) != 0 {
		t.Errorf("the defaults warn: %q", w)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("policies:\n  core: {limits: [{quota: 5, window: 90s, aligned: true}]}\n")
	f.Add("backend: redis\nredis:\n  shards:\n    - {name: a, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002]}\n")
	f.Add("trusted_proxies: [127.0.0.0/8]\ndeadline: 50ms\non_failure: open\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseConfig("demo.yaml", []byte(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "demo.yaml:") {
				t.Errorf("%q: error does not name the file: %v", text, err)
			}
			return
		}
		for name, p := range c.policies {
			if err := p.Validate(); err != nil || p.Name != name {
				t.Errorf("%q: accepted policy %q: %+v, %v", text, name, p, err)
			}
		}
	})
}
