package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/stack"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/wrap/fallback"
)

func parse(name, text string) (*config, error) {
	return (&reader{name: name}).config([]byte(text))
}

func TestConfigErrorsSayWhatWouldBeRight(t *testing.T) {
	var algorithms []string
	for _, a := range quota.Algorithms() {
		algorithms = append(algorithms, a.String())
	}
	for _, test := range []struct{ name, text, want string }{
		{
			"unknown key", "listen: 127.0.0.1:80\nlisten_on: 3\n",
			`demo.yaml:2: unknown key listen_on; did you mean listen? The keys here are listen, debug_listen, backend, redis, memcached, shares, seed, flags, shadow, refusal_cache, roots, policies, dry_runs, tokens, trusted_proxies, deadline, on_failure, open_for, processes`,
		}, {
			"unknown key of a limit", "policies:\n  core:\n    limits:\n      - {quta: 4, quota: 4, window: 1h}\n",
			`demo.yaml:4: unknown key quta; did you mean quota? The keys here are quota, window, algorithm, aligned, burst, max_wait`,
		}, {
			"unknown key of a policy", "policies:\n  a.b: {limit: 3}\n",
			`demo.yaml:2: unknown key limit; did you mean limits? The keys here are limits, on_failure, mode, was, sync, low`,
		}, {
			"unknown mode", "policies:\n  core: {limits: [{quota: 4, window: 1h}], mode: soft}\n",
			`demo.yaml:2: policies.core.mode is "soft"; it must be exact, leased or synced`,
		}, {
			"leases of memory", "policies:\n  core: {limits: [{quota: 4, window: 1h}], mode: leased}\n",
			`demo.yaml:2: policies.core.mode is leased, but counts live in memory, where a lease saves no round trip; write exact, or choose another backend`,
		}, {
			"synced without roots", "policies:\n  core: {limits: [{quota: 4, window: 1h, aligned: true}], mode: synced}\n",
			`demo.yaml:2: policies.core.mode is synced, but there are no shards to agree at that are single servers of Redis, at most 64; set roots, such as roots: [127.0.0.1:6379]`,
		}, {
			"synced on a Cluster", "backend: redis\nredis: {shards: [{name: a, cluster: [127.0.0.1:7000]}]}\npolicies:\n  core: {limits: [{quota: 4, window: 1h, aligned: true}], mode: exact, was: synced}\n",
			`demo.yaml:4: policies.core.mode is synced, but there are no shards to agree at that are single servers of Redis, at most 64; set roots, such as roots: [127.0.0.1:6379]`,
		}, {
			"a log is synced", "roots: [127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h, algorithm: sliding-log}], mode: synced}\n",
			`demo.yaml:3: policy "core": limit 0, 4 per 1h0m0s (sliding-log), cannot be synced: its count is not a sum that processes can add to: it must be a token-bucket or an aligned fixed-window`,
		}, {
			"a window that a key opens is synced", "roots: [127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h}], mode: synced}\n",
			`demo.yaml:3: policy "core": limit 0, 4 per 1h0m0s (fixed-window), cannot be synced: it must be aligned, because one process would have to open a window for all`,
		}, {
			"a dry run of a synced policy", "roots: [127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h, aligned: true}], mode: synced}\ndry_runs:\n  core: {limits: [{quota: 2, window: 1h}]}\n",
			`demo.yaml:5: policy "core.dry-run": limit 0, 2 per 1h0m0s (fixed-window), cannot be synced: it must be aligned, because one process would have to open a window for all`,
		}, {
			"sync without a mode", "policies:\n  core: {limits: [{quota: 4, window: 1h}], sync: 1s}\n",
			`demo.yaml:2: policies.core.sync is set, but there is no mode; it is exact, leased or synced`,
		}, {
			"the name of a dry run", "policies:\n  core.dry-run: {limits: [{quota: 4, window: 1h}]}\n",
			`demo.yaml:2: policies."core.dry-run" is a name that ends in .dry-run, as those of dry runs do; choose another`,
		}, {
			"low above 1", "policies:\n  core: {limits: [{quota: 4, window: 1h}], mode: exact, low: 2}\n",
			`demo.yaml:2: policies.core.low is "2"; it must be a part of a bucket's capacity, above 0 and at most 1, such as 0.5`,
		}, {
			"sync of a microsecond", "policies:\n  core: {limits: [{quota: 4, window: 1h}], mode: exact, sync: 1us}\n",
			`demo.yaml:2: policies.core.sync is "1us"; it must be from 10ms to 1m`,
		}, {
			"two syncs", "policies:\n  core: {limits: [{quota: 4, window: 1h}], mode: exact, sync: 1s}\n  search: {limits: [{quota: 4, window: 1h}], mode: exact, sync: 2s}\n",
			`demo.yaml:3: policies.search.sync is 2s, but another policy's is 1s; all are synced at once, so there is one for all`,
		}, {
			"roots for nothing", "roots: [127.0.0.1:6379]\n",
			`demo.yaml:1: roots is set, but no policy has a mode; write mode: synced in one`,
		}, {
			"a root twice", "roots: [127.0.0.1:6379, 127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h}], mode: exact}\n",
			`demo.yaml:1: roots[1] is "127.0.0.1:6379", as another is; each root is there once`,
		}, {
			"unknown key of a shard", "backend: redis\nredis:\n  shards:\n    - {nam: a, name: a, primary: \"127.0.0.1:1\"}\n",
			`demo.yaml:4: unknown key nam; did you mean name? The keys here are name, primary, sentinel, cluster, replicas, tls, username, password_file`,
		}, {
			"unknown key of redis", "backend: redis\nredis: {shard: []}\n",
			`demo.yaml:2: unknown key shard; did you mean shards? The keys here are shards, resharded`,
		}, {
			"key twice", "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n",
			`demo.yaml:2: listen is set twice, first in line 1`,
		}, {
			"not YAML", "listen: [127\n",
			`demo.yaml:2: did not find expected ',' or ']', while parsing a flow sequence that begins in line 1`,
		}, {
			"two documents", "listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:2\n",
			`demo.yaml:2: a second document begins here; one file is one configuration`,
		}, {
			"listen without port", "listen: localhost\n",
			`demo.yaml:1: listen is "localhost"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"listen with a bad port", "listen: localhost:99999\n",
			`demo.yaml:1: listen is "localhost:99999"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"unknown backend", "backend: etcd\n",
			`demo.yaml:1: backend is "etcd"; it must be memory, redis, redis-resharded, memcached or shares`,
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
			`demo.yaml:3: memcached.servers[0] is "localhost"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"server twice", "backend: memcached\nmemcached:\n  servers:\n    - 127.0.0.1:1\n    - 127.0.0.1:1\n",
			`demo.yaml:5: memcached.servers[1] is "127.0.0.1:1", as memcached.servers[0] is; names must differ, because keys find their server by it`,
		}, {
			"unknown key of a server", "backend: memcached\nmemcached:\n  servers:\n    - {name: a, address: \"127.0.0.1:1\", port: 1}\n",
			`demo.yaml:4: unknown key port; the keys here are name, address`,
		}, {
			"flags with nowhere to go", "flags: flags.json\n",
			`demo.yaml:1: flags is set, but there is no backend other than memory to move clients to; set redis or memcached`,
		}, {
			"unknown shadow", "shadow: etcd\n",
			`demo.yaml:1: shadow is "etcd"; it must be memory, redis, redis-resharded or memcached`,
		}, {
			"shadow that is not there", "shadow: redis\n",
			`demo.yaml:1: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"refusal cache in memory", "refusal_cache: true\n",
			`demo.yaml:1: refusal_cache is set, but counts live in memory, where it saves no round trip; leave it out, or choose another backend`,
		}, {
			"refusal cache in memory, with exceptions", "refusal_cache: {except: [core]}\n",
			`demo.yaml:1: refusal_cache is set, but counts live in memory, where it saves no round trip; leave it out, or choose another backend`,
		}, {
			"refusal cache is no choice", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nrefusal_cache: on\n",
			`demo.yaml:3: refusal_cache is "on"; it must be true, false or a mapping with except`,
		}, {
			"refusal cache except no policy", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nrefusal_cache:\n  except: [cor]\n",
			`demo.yaml:4: refusal_cache.except[0] is "cor"; it must be the name of a policy, such as core`,
		}, {
			"refusal cache with another key", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nrefusal_cache: {max_age: 2s}\n",
			`demo.yaml:3: unknown key max_age; the keys here are except`,
		}, {
			"dry run next to no route", "dry_runs:\n  cor: {limits: [{quota: 1, window: 1s}]}\n",
			`demo.yaml:2: dry_runs.cor limits no route; did you mean core? The routes use core, search, auth.createToken, org, org.member, secondary`,
		}, {
			"dry run without a window", "dry_runs:\n  core:\n    limits:\n      - {quota: 1}\n",
			`demo.yaml:4: dry_runs.core.limits[0].window is missing; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"nearly a policy of the routes", "policies:\n  cor: {limits: [{quota: 1, window: 1s}]}\n",
			`demo.yaml:2: policies.cor limits no route; did you mean core? The routes use core, search, auth.createToken, org, org.member, secondary`,
		}, {
			"a policy in other letters", "policies:\n  Search: {limits: [{quota: 1, window: 1s}]}\n",
			`demo.yaml:2: policies.Search limits no route; did you mean search? The routes use core, search, auth.createToken, org, org.member, secondary`,
		}, {
			"a tab", "policies:\n\tcore: {limits: [{quota: 1, window: 1s}]}\n",
			`demo.yaml:2: the line begins with a tab; indent it by spaces, as YAML asks`,
		}, {
			"a tab after spaces", "policies:\n  core:\n  \tlimits: [{quota: 1, window: 1s}]\n",
			`demo.yaml:3: the line begins with a tab; indent it by spaces, as YAML asks`,
		}, {
			"a character that YAML keeps", "listen: @home\n",
			`demo.yaml:1: found character that cannot start any token; write the value in quotes`,
		}, {
			"no shards", "backend: redis\n",
			`demo.yaml:1: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"no shards in the list", "backend: redis\nredis:\n  shards: []\n",
			`demo.yaml:3: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"shard without a name", "backend: redis\nredis:\n  shards:\n    - {primary: 127.0.0.1:1}\n",
			`demo.yaml:4: redis.shards[0].name is missing; it must be a name, such as a: keys find their shard by it`,
		}, {
			"shard name twice", "backend: redis\nredis:\n  shards:\n    - {name: a, primary: 127.0.0.1:1}\n    - {name: a, primary: 127.0.0.1:2}\n",
			`demo.yaml:5: redis.shards[1].name is "a", as redis.shards[0].name is; names must differ, because keys find their shard by it`,
		}, {
			"shard without a primary", "backend: redis\nredis:\n  shards:\n    - {name: a}\n",
			`demo.yaml:4: redis.shards[0].primary is missing; it must be a host and a port, such as 127.0.0.1:6379, or a URL, such as rediss://weir@127.0.0.1:6379/0; or there must be sentinel or cluster in its place`,
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
			`demo.yaml:5: policies."a.b".limits[0].quota is "many"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"quota is no whole number", "policies: {core: {limits: [{quota: 4.5, window: 60s}]}}\n",
			`demo.yaml:1: policies.core.limits[0].quota is "4.5"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"quota is beyond int64", "policies: {core: {limits: [{quota: 99999999999999999999, window: 60s}]}}\n",
			`demo.yaml:1: policies.core.limits[0].quota is "99999999999999999999"; it must be at most 9007199254740992 (2^53)`,
		}, {
			"quota below zero", "policies: {core: {limits: [{quota: -1, window: 60s}]}}\n",
			`demo.yaml:1: policies.core.limits[0].quota is "-1"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"quota missing", "policies:\n  core:\n    limits:\n      - window: 60s\n",
			`demo.yaml:4: policies.core.limits[0].quota is missing; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"a limit in words that is none", "policies:\n  core:\n    limits:\n      - 60 / 1h\n",
			`demo.yaml:4: policies.core.limits[0]: limit is "60 / 1h"; it must be a quota, per, and a window, such as 10 per 1m, and then as needed an algorithm, aligned, burst 20 and max-wait 2s`,
		}, {
			"a limit in words that no policy may have", "policies: {core: {limits: [60 per 1h burst 5]}}\n",
			`demo.yaml:1: policies.core.limits[0]: limit is "60 per 1h burst 5": burst is 5; only a token-bucket or a leaky-bucket has one, not a fixed-window`,
		}, {
			"window without a unit", "policies: {core: {limits: [{quota: 1, window: 60}]}}\n",
			`demo.yaml:1: policies.core.limits[0].window is "60"; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"window missing", "policies: {core: {limits: [{quota: 1}]}}\n",
			`demo.yaml:1: policies.core.limits[0].window is missing; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"window too long", "policies:\n  core:\n    limits:\n      - {quota: 1, window: 1h}\n      - {quota: 2, window: 9000h}\n",
			`demo.yaml:5: policy "core": limit 1: window is 9000h0m0s; it must be from 1ms to 8784h0m0s (366 days)`,
		}, {
			"two limits of one window", "policies:\n  core: {limits: [{quota: 1, window: 1h}, {quota: 2, window: 1h}]}\n",
			`demo.yaml:2: policy "core": limits 0 and 1 are both a fixed-window of 1h0m0s; only the smaller quota could ever refuse, so keep that one`,
		}, {
			"unknown algorithm", "policies:\n  core:\n    limits:\n      - quota: 1\n        window: 1h\n        algorithm: gcra\n",
			`demo.yaml:6: algorithm is "gcra"; it must be one of ` + fmt.Sprintf("%q", algorithms),
		}, {
			"aligned is no truth", "policies: {core: {limits: [{quota: 1, window: 1h, aligned: perhaps}]}}\n",
			`demo.yaml:1: policies.core.limits[0].aligned is "perhaps"; it must be true or false`,
		}, {
			"burst of a window", "policies: {core: {limits: [{quota: 1, window: 1h, burst: 3}]}}\n",
			`demo.yaml:1: policy "core": limit 0: burst is 3; only a token-bucket or a leaky-bucket has one, not a fixed-window`,
		}, {
			"burst of zero", "policies: {core: {limits: [{quota: 1, window: 1h, algorithm: token-bucket, burst: 0}]}}\n",
			`demo.yaml:1: policies.core.limits[0].burst is "0"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
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
			"deadline that nothing meets", "deadline: 1ns\n",
			`demo.yaml:1: deadline is "1ns"; it must be from 1ms to 30s`,
		}, {
			"deadline beyond patience", "deadline: 1h\n",
			`demo.yaml:1: deadline is "1h"; it must be from 1ms to 30s`,
		}, {
			"quota in octal", "policies: {core: {limits: [{quota: 010, window: 60s}]}}\n",
			`demo.yaml:1: policies.core.limits[0].quota is "010"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
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
			`demo.yaml:1: the token "a b" cannot be sent; it must be letters, digits and - . _ ~ + /, with = at its end alone`,
		}, {
			"a token of a list", "tokens: {a: {subject: [b]}}\n",
			`demo.yaml:1: tokens.a.subject is a list; it must be the name of a caller, such as alice`,
		}, {
			"a debug address without a host", "debug_listen: :8081\n",
			`demo.yaml:1: debug_listen is ":8081"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"one address for both listeners", "listen: 127.0.0.1:81\ndebug_listen: 127.0.0.1:81\n",
			`demo.yaml:2: debug_listen is "127.0.0.1:81"; it must be another address than listen`,
		}, {
			"a value without end", "on_failure: " + strings.Repeat("a", 1000) + "\n",
			`demo.yaml:1: on_failure is "` + strings.Repeat("a", 80) + `"…; it must be open, local or closed`,
		}, {
			"a key without end", strings.Repeat("a", 1000) + ": 1\n",
			`demo.yaml:1: unknown key "` + strings.Repeat("a", 80) + `"…; the keys here are listen, debug_listen, backend, redis, memcached, shares, seed, flags, shadow, refusal_cache, roots, policies, dry_runs, tokens, trusted_proxies, deadline, on_failure, open_for, processes`,
		}, {
			"unknown failure policy", "on_failure: serve\n",
			`demo.yaml:1: on_failure is "serve"; it must be open, local or closed`,
		}, {
			"unknown failure policy of a policy", "policies:\n  core: {limits: [{quota: 1, window: 1h}], on_failure: 503}\n",
			`demo.yaml:2: policies.core.on_failure is "503"; it must be open, local or closed`,
		}, {
			"local without processes", "policies:\n  core:\n    limits: [{quota: 1, window: 1h}]\n    on_failure: local\non_failure: local\n",
			"demo.yaml:4: policies.core.on_failure is local, which needs processes: how many demos share the backend, such as processes: 3\n" +
				"demo.yaml:5: on_failure is local, which needs processes: how many demos share the backend, such as processes: 3",
		}, {
			"a seed that is none", "seed: 0x5eed\n",
			`demo.yaml:1: seed is "0x5eed"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"no processes", "on_failure: local\nprocesses: 0\n",
			`demo.yaml:2: processes is "0"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"too many processes", "processes: 1048577\n",
			`demo.yaml:1: processes is "1048577"; it must be at most 1048576`,
		}, {
			"open_for without a unit", "open_for: 60\n",
			`demo.yaml:1: open_for is "60"; it must be a duration above zero, with its unit, such as 50ms, 60s or 1h`,
		}, {
			"a dry run has no outages", "dry_runs:\n  core: {limits: [{quota: 1, window: 1h}], on_failure: open}\n",
			`demo.yaml:2: unknown key on_failure; the keys here are limits`,
		}, {
			"all at once", "on_failure: no\nlisten: 1\nlisten: 2\nfoo: 1\npolicies:\n  core: {limits: [{quota: 010, window: 5}]}\n  b: 3\nbackend: disk\n",
			"demo.yaml:1: on_failure is \"no\"; it must be open, local or closed\n" +
				"demo.yaml:2: listen is \"1\"; it must be a host and a port, such as 127.0.0.1:8080\n" +
				"demo.yaml:3: listen is set twice, first in line 2\n" +
				"demo.yaml:4: unknown key foo; the keys here are listen, debug_listen, backend, redis, memcached, shares, seed, flags, shadow, refusal_cache, roots, policies, dry_runs, tokens, trusted_proxies, deadline, on_failure, open_for, processes\n" +
				"demo.yaml:6: policies.core.limits[0].quota is \"010\"; it must be a whole number, 1 or more, in decimal digits, such as 60\n" +
				"demo.yaml:6: policies.core.limits[0].window is \"5\"; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d\n" +
				"demo.yaml:7: policies.b is \"3\"; it must be a mapping with limits, on_failure, mode, was, sync, low\n" +
				"demo.yaml:8: backend is \"disk\"; it must be memory, redis, redis-resharded, memcached or shares",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := parse("demo.yaml", test.text)
			if err == nil {
				t.Fatalf("got %+v, want an error", c)
			}
			if err.Error() != test.want {
				t.Errorf("got  %s\nwant %s", err, test.want)
			}
		})
	}
}

// TestConfigOfAnotherShape tries values of another kind, and what else YAML has.
func TestConfigOfAnotherShape(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "demo.yaml: the file is empty; any key may be left out, but not all of them",
		"# listen: 1\n":                    "demo.yaml: the file is empty; any key may be left out, but not all of them",
		"---\n":                            "demo.yaml: the file is empty; any key may be left out, but not all of them",
		"policies: 3\n":                    `demo.yaml:1: policies is "3"; it must be a mapping of policies by their names`,
		"- a\n- b\n":                       "demo.yaml:1: the file is a list; it must be a mapping with listen, debug_listen, ",
		"\nlisten: {a: b}\n":               "demo.yaml:2: listen is a mapping; it must be a host and a port, such as 127.0.0.1:8080",
		"policies:\n core: {limits: {}}\n": "demo.yaml:2: policies.core.limits is a mapping; it must be a list of limits",
		"policies: {core: {limits: [{quota: [60], window: 1h}]}}\n": "demo.yaml:1: policies.core.limits[0].quota is a list; it must be a whole number, ",
		"deadline: 50ms\n\tlisten: x\n":                             "demo.yaml:2: the line begins with a tab; indent it by spaces, as YAML asks",
		"a: 1\n b: 2\n":                                             "demo.yaml:2: mapping values are not allowed in this context",
		"redis: [a]\n":                                              "demo.yaml:1: redis is a list; it must be a mapping with shards, resharded",
		"memcached: {servers: [[a]]}\n":                             "demo.yaml:1: memcached.servers[0] is a list; it must be a mapping with name, address",
		"? [a]\n: b\n":                                              "demo.yaml:1: the file: a key is a list; it must be a word",
		"~: b\n":                                                    "demo.yaml:1: the file: a key is missing; it must be a word",
		"on_failure: !!str open\n":                                  "demo.yaml:1: on_failure has the tag !!str; leave the tag out",
		"deadline: !seconds 5\n":                                    "demo.yaml:1: deadline has the tag !seconds; leave the tag out",
		"listen: \"a\nb: 3\n":                                       "demo.yaml:3: found unexpected end of stream, while scanning a quoted scalar that begins in line 1",
		"listen: a\ndeadline: \xff\n":                               "demo.yaml:2: the text is not UTF-8",
		"\xff\xfel\x00":                                             "demo.yaml:1: the text is not UTF-8",
		"listen: \x00\n":                                            "demo.yaml: control characters are not allowed",
		strings.Repeat("[", 20_000):                                 "demo.yaml:1: exceeded max depth of 10000",
		"policies: &p {core: *p}\n":                                 "demo.yaml:1: policies.core is the alias *p; write the value itself",
		"policies:\n  <<: {core: 3}\n":                              "demo.yaml:2: unknown key core; the keys here are limits, on_failure",
		"policies: &a {x: [1]}\ndry_runs: *a\n":                     "demo.yaml:1: ",
		"listen: *nowhere\n":                                        "demo.yaml:1: unknown anchor 'nowhere' referenced",
	} {
		c, err := parse("demo.yaml", text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %+v, error %v, want %q", text, c, err, want)
		}
	}
}

func TestRefusalCacheIsOnWhereItSavesARoundTrip(t *testing.T) {
	const redis, memcached = "redis: {shards: [{name: a, primary: 127.0.0.1:1}]}\n", "memcached: {servers: [127.0.0.1:1]}\n"
	for text, want := range map[string]bool{
		"backend: memory\n":                                     false,
		"backend: memory\nrefusal_cache: false\n":               false,
		"backend: memory\nshadow: redis\n" + redis:              false, // the shadow is off the request's path
		"backend: memory\nflags: flags.json\n" + redis:          true,
		"backend: redis\n" + redis:                              true,
		"backend: redis\nrefusal_cache: true\n" + redis:         true,
		"backend: redis\nrefusal_cache:\n" + redis:              true,
		"backend: redis\nrefusal_cache: {except: []}\n" + redis: true,
		"backend: redis\nrefusal_cache: false\n" + redis:        false,
		"backend: memcached\n" + memcached:                      true,
	} {
		c, err := parse("demo.yaml", text)
		if err != nil || c.backends.refusals.on != want {
			t.Errorf("%q: got %+v, error %v, want %v", text, c, err, want)
		}
	}
}

// TestConfigBombs holds that a small file cannot become a large one.
func TestConfigBombs(t *testing.T) {
	bomb := "policies:\n  a0: &a0 {limits: [{quota: 1, window: 1s}]}\n"
	for i := range 40 {
		bomb += fmt.Sprintf("  a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	if _, err := parse("demo.yaml", bomb); err == nil || strings.Count(err.Error(), "\n") != 39 {
		t.Errorf("got %v, want an error for each of the 40 lists", err)
	}
}

// manyPolicies returns a file of n policies of two limits.
func manyPolicies(n int) string {
	var text strings.Builder
	text.WriteString("policies:\n")
	for i := range n {
		fmt.Fprintf(&text, "  p%d: {limits: [{quota: 60, window: 1h}, {quota: 5, window: 1s, algorithm: token-bucket}]}\n", i)
	}
	return text.String()
}

// TestConfigTimeIsLinear compares the times of small and large files. The time for n
// policies once grew with n², because each value was looked for from the top of
// the file: 20,000 took 18.5 s. It is the processor's time: a busy machine interrupts
// the long ones.
func TestConfigTimeIsLinear(t *testing.T) {
	const few, times = 150, 16
	spent := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	fastest := func(n int) time.Duration {
		text, best := manyPolicies(n), time.Hour
		for range 4 {
			began := spent()
			c, err := parse("demo.yaml", text)
			if err != nil {
				t.Fatal(err)
			}
			c.warnings()
			best = min(best, spent()-began)
		}
		return best
	}
	small, large := fastest(few), fastest(times*few)
	if large > small*times*times/3 {
		t.Errorf("%d policies take %v, %d take %v: more than in proportion", few, small, times*few, large)
	}
}

func TestConfigOfManyPolicies(t *testing.T) {
	const policies = 5000
	text := manyPolicies(policies)
	c, err := parse("demo.yaml", text)
	if err != nil || len(c.policies) != policies+len(routePolicies) {
		t.Fatalf("%d policies, error %v", len(c.policies), err)
	}
	warnings := c.warnings()
	if want := `no route uses the policies "p0", "p1", "p10", and 4997 more; the routes use `; len(warnings) != 1 || !strings.HasPrefix(warnings[0], want) {
		t.Errorf("got warnings %.300q, want one, %q…", warnings, want)
	}

	wrong := strings.ReplaceAll(manyPolicies(1000), "quota: 60", "quota: 060")
	if _, err := parse("demo.yaml", wrong); err == nil || strings.Count(err.Error(), "\n")+1 != 1000 {
		t.Errorf("1000 wrong policies: got %.100v…", err)
	}

	file := filepath.Join(t.TempDir(), "demo.yaml")
	if err := os.WriteFile(file, make([]byte, maxConfigBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadConfig(file); err == nil || err.Error() != file+": the file has more than 8388608 bytes" {
		t.Errorf("a file that is too large: got %v", err)
	}
}

func TestByteOrderMarkIsNoMistake(t *testing.T) {
	if c, err := parse("demo.yaml", "\ufefflisten: 127.0.0.1:81\n"); err != nil || c.listen != "127.0.0.1:81" {
		t.Errorf("got %+v, error %v", c, err)
	}
	if _, err := parse("demo.yaml", "\ufeff\r\nlisten: 81\r\n"); err == nil || !strings.HasPrefix(err.Error(), "demo.yaml:2: listen is") {
		t.Errorf("got %v, want an error in line 2", err)
	}
}

// TestNumbersAreDecimal holds that no number is read as another one.
func TestNumbersAreDecimal(t *testing.T) {
	for _, quota := range []string{"010", "0x10", "0o10", "0b11", "1_000", "1e3", "1E3", "+5", "5.0", "5.", ".inf", "1,000", "٣", "' 5'", "0", "-0", "true", "1:30"} {
		if _, err := parse("demo.yaml", fmt.Sprintf("policies: {core: {limits: [{quota: %s, window: 1h}]}}\n", strings.Replace(quota, "1,000", "'1,000'", 1))); err == nil || !strings.Contains(err.Error(), "in decimal digits") {
			t.Errorf("quota: %s: got %v, want an error that says what would be right", quota, err)
		}
	}
	for _, window := range []string{"60", "1_000s", "1e3s", "0x10s", "-1s", "1.5d", "01d", "inf", "9999999999h"} {
		if _, err := parse("demo.yaml", fmt.Sprintf("policies: {core: {limits: [{quota: 1, window: %s}]}}\n", window)); err == nil || !strings.Contains(err.Error(), "with its unit") {
			t.Errorf("window: %s: got %v, want an error that says what would be right", window, err)
		}
	}
}

func at(addrs ...string) redis.UniversalOptions { return redis.UniversalOptions{Addrs: addrs} }

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
refusal_cache: {except: [search, queue]}
dry_runs:
  core: {limits: [{quota: 4, window: 90s}]}
policies:
  core: {limits: [{quota: 5, window: 90s, aligned: true}], on_failure: local}
  burst: {limits: [10 per 1s token-bucket burst 30, {quota: 100, window: 1d}]}
  queue: {limits: [{quota: 10, window: 1s, algorithm: leaky-bucket, max_wait: 2s}], on_failure: open}
tokens: {key-1: {subject: alice}, key-2: {subject: alice}, bob: {}}
trusted_proxies: [127.0.0.0/8, "fd00::/8"]
deadline: 20ms
on_failure: closed
open_for: 1m
processes: 3
debug_listen: off
`
	got, err := parse("etc/demo.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	want := defaultConfig()
	want.listen = "[::1]:9000"
	want.backends = backendsConfig{
		serving: "redis",
		shards: []shardConfig{
			{name: "a", primary: at("127.0.0.1:7001"), replicas: []string{"127.0.0.1:7002"}},
			{name: "b", primary: at("127.0.0.1:7003")},
		},
		resharded: []shardConfig{{name: "a", primary: at("127.0.0.1:7005")}},
		servers:   []serverConfig{{"127.0.0.1:7006", "127.0.0.1:7006"}, {"m", "127.0.0.1:7007"}},
		flags:     filepath.Join("etc", "flags.json"),
		shadow:    "memory",
		refusals:  refusalsConfig{on: true, except: []string{"search", "queue"}},
	}
	want.dryRuns["core"] = &throttler.Policy{Name: "core.dry-run", Limits: []throttler.Limit{{Quota: 4, Window: 90 * time.Second}}}
	for name, l := range map[string]throttler.Limit{
		"core":  {Quota: 5, Window: 90 * time.Second, Aligned: true},
		"burst": {Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 30},
		"queue": {Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket, MaxWait: 2 * time.Second},
	} {
		want.policies[name] = &throttler.Policy{Name: name, Limits: []throttler.Limit{l}}
	}
	want.policies["burst"].Limits = append(want.policies["burst"].Limits, throttler.Limit{Quota: 100, Window: 24 * time.Hour})
	want.tokens = tokensConfig{subjects: map[string]string{"key-1": "alice", "key-2": "alice", "bob": "bob"}}
	want.debugListen = ""
	want.trustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	want.deadline = 20 * time.Millisecond
	want.failures = failuresConfig{choice: fallback.Closed, policies: map[string]fallback.Choice{"core": fallback.Local, "queue": fallback.Open}, processes: 3, openFor: time.Minute}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	warnings := []string{
		`no route uses the policies "burst", "queue"; the routes use core, search, auth.createToken, org, org.member, secondary`,
	}
	if w := got.warnings(); !slices.Equal(w, warnings) {
		t.Errorf("got warnings %q, want %q", w, warnings)
	}
	const flags = "the flags' file is wrong, until it is right all clients are on redis: etc/flags.json: no such file or directory"
	if err := got.checkFlags(); err == nil || err.Error() != flags {
		t.Errorf("got %v, want %s", err, flags)
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
		c, err := parse("demo.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(c.warnings(), "\n"); got != want {
			t.Errorf("%sgot  %q\nwant %q", text, got, want)
		}
	}
}

func TestEmptyConfigIsTheDefault(t *testing.T) {
	for _, text := range []string{"{}\n", "policies: {}\n", "policies:\n"} {
		got, err := parse("demo.yaml", text)
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
	f.Add("backend: redis\nredis:\n  shards:\n    - {name: a, primary: 'rediss://u:p@a/1', tls: {server_name: b}, username: u, password_file: p}\n")
	f.Add("backend: redis\nredis:\n  shards:\n    - {name: a, sentinel: {master: m, addrs: ['a:1']}, replicas: ['b:1'], tls: true}\n    - {name: b, cluster: ['a:1']}\n")
	f.Add("policies:\n  core: {limits: [5 per 1d aligned, 1 per 1s token-bucket burst 3]}\n")
	f.Add("trusted_proxies: [127.0.0.0/8]\ndeadline: 50ms\non_failure: local\nprocesses: 3\nopen_for: 1m\n")
	f.Add("tokens: {a: {subject: b}}\nmemcached: {servers: [127.0.0.1:1, {name: a, address: 127.0.0.1:2}]}\nshadow: memcached\n")
	f.Add("backend: memcached\nmemcached: {servers: [127.0.0.1:1]}\nrefusal_cache: {except: [search]}\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse("demo.yaml", text)
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
		if c.deadline < minDeadline || c.deadline > maxDeadline {
			t.Errorf("%q: accepted deadline %v", text, c.deadline)
		}
		for _, p := range c.trustedProxies {
			if !p.IsValid() || p.Bits() < minPrefix6 || p.Contains(netip.MustParseAddr("0.0.0.0")) && p.Contains(netip.MustParseAddr("128.0.0.0")) {
				t.Errorf("%q: accepted trusted proxies %v", text, p)
			}
		}
		c.warnings()
		if _, _, err := routes(c, &backends{config: c, stack: &stack.Stack{Backend: memorybackend.NewDefault()}}); err != nil {
			t.Errorf("%q: the configuration is right, and its routes are not: %v", text, err)
		}
	})
}
