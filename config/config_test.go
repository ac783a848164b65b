package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/guard"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// program has keys next to the configuration's, and policies.
type program struct{ Listen ListenAddress }

var programPolicies = []*quota.Policy{
	{Name: "core", Limits: []quota.Limit{{Quota: 60, Window: time.Hour}}},
	{Name: "search", Limits: []quota.Limit{{Quota: 30, Window: time.Minute}}},
	{Name: "auth.createToken", Limits: []quota.Limit{{Quota: 20, Window: time.Minute}, {Quota: 5, Window: 3 * time.Second}}},
	{Name: "org", Limits: []quota.Limit{{Quota: 100, Window: time.Minute}}},
}

func parse(name, text string) (*Config, error) {
	return Parse(name, []byte(text), &Options{Policies: programPolicies, Program: new(program)})
}

func TestConfigErrorsSayWhatWouldBeRight(t *testing.T) {
	var algorithms []string
	for _, a := range quota.Algorithms() {
		algorithms = append(algorithms, a.String())
	}
	for _, test := range []struct{ name, text, want string }{
		{
			"unknown key", "listen: 127.0.0.1:80\nlisten_on: 3\n",
			`weir.yaml:2: unknown key listen_on; did you mean listen? The keys here are listen, backend, redis, memcached, shares, seed, prefix, flags, shadow, refusal_cache, roots, policies_at, policies, dry_runs, deadline, on_failure, open_for, processes`,
		}, {
			"unknown key of a limit", "policies:\n  core:\n    limits:\n      - {quta: 4, quota: 4, window: 1h}\n",
			`weir.yaml:4: unknown key quta; did you mean quota? The keys here are quota, window, algorithm, aligned, burst, max_wait`,
		}, {
			"unknown key of a policy", "policies:\n  a.b: {limit: 3}\n",
			`weir.yaml:2: unknown key limit; did you mean limits? The keys here are limits, unit, hidden, parent, parent_key, on_failure, consistency, was, sync, low`,
		}, {
			"unknown level", "policies:\n  core: {limits: [{quota: 4, window: 1h}], consistency: soft}\n",
			`weir.yaml:2: policies.core.consistency is "soft"; it must be exact, leased or synced`,
		}, {
			"leases of memory", "policies:\n  core: {limits: [{quota: 4, window: 1h}], consistency: leased}\n",
			`weir.yaml:2: policies.core.consistency is leased, but counts live in memory, where a lease saves no round trip; write exact, or choose another backend`,
		}, {
			"synced without roots", "policies:\n  core: {limits: [{quota: 4, window: 1h, aligned: true}], consistency: synced}\n",
			`weir.yaml:2: policies.core.consistency is synced, but there are no shards to agree at that are single servers of Redis, at most 64; set roots, such as roots: [127.0.0.1:6379]`,
		}, {
			"synced on a Cluster", "backend: redis\nredis: {shards: [{name: a, cluster: [127.0.0.1:7000]}]}\npolicies:\n  core: {limits: [{quota: 4, window: 1h, aligned: true}], consistency: exact, was: synced}\n",
			`weir.yaml:4: policies.core.was is synced, but there are no shards to agree at that are single servers of Redis, at most 64; set roots, such as roots: [127.0.0.1:6379]`,
		}, {
			"an unknown level before", "policies:\n  core: {limits: 4 per 1h, consistency: exact, was: soft}\n",
			`weir.yaml:2: policies.core.was is "soft"; it must be exact, leased or synced`,
		}, {
			"leases of memory before", "policies:\n  core:\n    limits: 4 per 1h\n    consistency: exact\n    was: leased\n",
			`weir.yaml:5: policies.core.was is leased, but counts live in memory, where a lease saves no round trip; write exact, or choose another backend`,
		}, {
			"a log was synced", "roots: [127.0.0.1:6379]\npolicies:\n  core: {limits: 4 per 1h sliding-log, consistency: exact, was: synced}\n",
			`weir.yaml:3: policies.core.was is synced: policy "core": limit 0, 4 per 1h0m0s (sliding-log), cannot be synced: its count is not a sum that processes can add to: it must be a token-bucket or an aligned fixed-window`,
		}, {
			"a log is synced", "roots: [127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h, algorithm: sliding-log}], consistency: synced}\n",
			`weir.yaml:3: policy "core": limit 0, 4 per 1h0m0s (sliding-log), cannot be synced: its count is not a sum that processes can add to: it must be a token-bucket or an aligned fixed-window`,
		}, {
			"a window that a key opens is synced", "roots: [127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h}], consistency: synced}\n",
			`weir.yaml:3: policy "core": limit 0, 4 per 1h0m0s (fixed-window), cannot be synced: it must be aligned, because one process would have to open a window for all`,
		}, {
			"a calendar is synced", "roots: [127.0.0.1:6379]\npolicies:\n  core: {limits: 4 per month, consistency: synced}\n",
			`weir.yaml:3: policy "core": limit 0, 4 per month (fixed-window), cannot be synced: a calendar's windows have no number since the epoch: it must be a token-bucket or an aligned fixed-window`,
		}, {
			"a dry run of a synced policy", "roots: [127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h, aligned: true}], consistency: synced}\ndry_runs:\n  core: {limits: [{quota: 2, window: 1h}]}\n",
			`weir.yaml:5: policy "core.dry-run": limit 0, 2 per 1h0m0s (fixed-window), cannot be synced: it must be aligned, because one process would have to open a window for all`,
		}, {
			"sync without a level", "policies:\n  core: {limits: [{quota: 4, window: 1h}], sync: 1s}\n",
			`weir.yaml:2: policies.core.sync is set, but there is no consistency; it is exact, leased or synced`,
		}, {
			"the name of a dry run", "policies:\n  core.dry-run: {limits: [{quota: 4, window: 1h}]}\n",
			`weir.yaml:2: policies."core.dry-run" is a name that ends in .dry-run, as dry runs do; choose another`,
		}, {
			"low above 1", "policies:\n  core: {limits: [{quota: 4, window: 1h}], consistency: exact, low: 2}\n",
			`weir.yaml:2: policies.core.low is "2"; it must be a part of a bucket's capacity, above 0 and at most 1, such as 0.5`,
		}, {
			"sync of a microsecond", "policies:\n  core: {limits: [{quota: 4, window: 1h}], consistency: exact, sync: 1us}\n",
			`weir.yaml:2: policies.core.sync is "1us"; it must be from 10ms to 1m0s`,
		}, {
			"two syncs", "policies:\n  core: {limits: [{quota: 4, window: 1h}], consistency: exact, sync: 1s}\n  search: {limits: [{quota: 4, window: 1h}], consistency: exact, sync: 2s}\n",
			`weir.yaml:3: policies.search.sync is 2s, but another policy's is 1s; all are synced at once, so there is one for all`,
		}, {
			"roots for nothing", "roots: [127.0.0.1:6379]\n",
			`weir.yaml:1: roots is set, but no policy has a consistency; write consistency: synced in one`,
		}, {
			"a root twice", "roots: [127.0.0.1:6379, 127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h}], consistency: exact}\n",
			`weir.yaml:1: roots[1] is "127.0.0.1:6379", as roots[0] is; each root is there once`,
		}, {
			"a root twice, next to a wrong one", "roots: [127.0.0.1:6379, a, 127.0.0.1:6379]\npolicies:\n  core: {limits: [{quota: 4, window: 1h}], consistency: exact}\n",
			`weir.yaml:1: roots[1] is "a"; it must be a host and a port, such as 127.0.0.1:6379, the path of a socket, such as /run/redis.sock, or a URL, such as rediss://weir@127.0.0.1:6379/0` + "\n" +
				`weir.yaml:1: roots[2] is "127.0.0.1:6379", as roots[0] is; each root is there once`,
		}, {
			"unknown key of a shard", "backend: redis\nredis:\n  shards:\n    - {nam: a, name: a, primary: \"127.0.0.1:1\"}\n",
			`weir.yaml:4: unknown key nam; did you mean name? The keys here are name, primary, sentinel, tls, username, password_file, password_env, idle_timeout, cluster, replicas`,
		}, {
			"unknown key of redis", "backend: redis\nredis: {shard: []}\n",
			`weir.yaml:2: unknown key shard; did you mean shards? The keys here are shards, resharded`,
		}, {
			"key twice", "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n",
			`weir.yaml:2: listen is set twice, first in line 1`,
		}, {
			"not YAML", "listen: [127\n",
			`weir.yaml:2: did not find expected ',' or ']', while parsing a flow sequence that begins in line 1`,
		}, {
			"two documents", "listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:2\n",
			`weir.yaml:2: a second document begins here; one file is one configuration`,
		}, {
			"listen without port", "listen: localhost\n",
			`weir.yaml:1: listen is "localhost"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"listen with a bad port", "listen: localhost:99999\n",
			`weir.yaml:1: listen is "localhost:99999"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"unknown backend", "backend: etcd\n",
			`weir.yaml:1: backend is "etcd"; it must be memory, redis, redis-resharded, memcached or shares`,
		}, {
			"redis and memory", "redis: {shards: [{name: a, primary: 127.0.0.1:1}]}\n",
			`weir.yaml:1: redis is set, but the backend is memory; write backend: redis, or flags: FILE to move clients between them, or leave redis out`,
		}, {
			"memcached and redis", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nmemcached: {servers: [127.0.0.1:2]}\n",
			`weir.yaml:3: memcached is set, but the backend is redis; write backend: memcached, or flags: FILE to move clients between them, or leave memcached out`,
		}, {
			"no servers", "backend: memcached\nmemcached: {servers: []}\n",
			`weir.yaml:2: memcached.servers is empty; the memcached backend needs at least one server, such as 127.0.0.1:11211`,
		}, {
			"server without a port", "backend: memcached\nmemcached:\n  servers: [localhost]\n",
			`weir.yaml:3: memcached.servers[0] is "localhost"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"server twice", "backend: memcached\nmemcached:\n  servers:\n    - 127.0.0.1:1\n    - 127.0.0.1:1\n",
			`weir.yaml:5: memcached.servers[1] is "127.0.0.1:1", as memcached.servers[0] is; names must differ, because keys find their server by it`,
		}, {
			"unknown key of a server", "backend: memcached\nmemcached:\n  servers:\n    - {name: a, address: \"127.0.0.1:1\", port: 1}\n",
			`weir.yaml:4: unknown key port; the keys here are name, address`,
		}, {
			"flags with nowhere to go", "flags: ../cmd/demo-api/docker/flags.yaml\n",
			`weir.yaml:1: flags is set, but there is no backend other than memory to move clients to; set redis or memcached`,
		}, {
			"flags that are not there", "backend: memory\nflags: gone.json\n",
			`weir.yaml:2: flags is "gone.json": no such file or directory; it must be a file of percentages, such as redis: 5`,
		}, {
			"a shadow of the backend itself", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:6379}]}\nshadow: redis\n",
			`weir.yaml:3: shadow is redis, and so is the backend: it would decide each request twice, and compare nothing; write another store, or leave shadow out`,
		}, {
			"unknown shadow", "shadow: etcd\n",
			`weir.yaml:1: shadow is "etcd"; it must be memory, redis, redis-resharded or memcached`,
		}, {
			"shadow that is no store", "shadow: shares\n",
			`weir.yaml:1: shadow is "shares"; it must be memory, redis, redis-resharded or memcached`,
		}, {
			"several shadows", "shadow: [redis]\n",
			`weir.yaml:1: shadow is a list; it must be memory, redis, redis-resharded or memcached`,
		}, {
			"shadow that is not there", "shadow: redis\n",
			`weir.yaml:1: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"refusal cache in memory", "refusal_cache: true\n",
			`weir.yaml:1: refusal_cache is set, but counts live in memory, where it saves no round trip; leave it out, or choose another backend`,
		}, {
			"refusal cache in memory, with exceptions", "refusal_cache: {except: [core]}\n",
			`weir.yaml:1: refusal_cache is set, but counts live in memory, where it saves no round trip; leave it out, or choose another backend`,
		}, {
			"refusal cache is no choice", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nrefusal_cache: on\n",
			`weir.yaml:3: refusal_cache is "on"; it must be true, false or a mapping with except`,
		}, {
			"refusal cache except no policy", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nrefusal_cache:\n  except: [cor]\n",
			`weir.yaml:4: refusal_cache.except[0] is "cor"; it must be the name of a policy, such as core`,
		}, {
			"refusal cache with another key", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nrefusal_cache: {max_age: 2s}\n",
			`weir.yaml:3: unknown key max_age; the keys here are except`,
		}, {
			"dry run next to no policy", "dry_runs:\n  cor: {limits: [{quota: 1, window: 1s}]}\n",
			`weir.yaml:2: dry_runs.cor is next to no policy; did you mean core? The policies are auth.createToken, core, org, search`,
		}, {
			"dry run without a window", "dry_runs:\n  core:\n    limits:\n      - {quota: 1}\n",
			`weir.yaml:4: dry_runs.core.limits[0].window is missing; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"nearly a policy of the program", "policies:\n  cor: {limits: [{quota: 1, window: 1s}]}\n",
			`weir.yaml:2: policies.cor is no policy of the program; did you mean core? It uses core, search, auth.createToken, org`,
		}, {
			"a policy in other letters", "policies:\n  Search: {limits: [{quota: 1, window: 1s}]}\n",
			`weir.yaml:2: policies.Search is no policy of the program; did you mean search? It uses core, search, auth.createToken, org`,
		}, {
			"a tab", "policies:\n\tcore: {limits: [{quota: 1, window: 1s}]}\n",
			`weir.yaml:2: the line begins with a tab; indent it by spaces, as YAML asks`,
		}, {
			"a tab after spaces", "policies:\n  core:\n  \tlimits: [{quota: 1, window: 1s}]\n",
			`weir.yaml:3: the line begins with a tab; indent it by spaces, as YAML asks`,
		}, {
			"a character that YAML keeps", "listen: @home\n",
			`weir.yaml:1: found character that cannot start any token; write the value in quotes`,
		}, {
			"no shards", "backend: redis\n",
			`weir.yaml:1: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"no shards in the list", "backend: redis\nredis:\n  shards: []\n",
			`weir.yaml:3: redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}`,
		}, {
			"shard without a name", "backend: redis\nredis:\n  shards:\n    - {primary: 127.0.0.1:1}\n",
			`weir.yaml:4: redis.shards[0].name is missing; it must be a name, such as a: keys find their shard by it`,
		}, {
			"shard name twice", "backend: redis\nredis:\n  shards:\n    - {name: a, primary: 127.0.0.1:1}\n    - {name: a, primary: 127.0.0.1:2}\n",
			`weir.yaml:5: redis.shards[1].name is "a", as redis.shards[0].name is; names must differ, because keys find their shard by it`,
		}, {
			"shard without a primary", "backend: redis\nredis:\n  shards:\n    - {name: a}\n",
			`weir.yaml:4: redis.shards[0].primary is missing; it must be a host and a port, such as 127.0.0.1:6379, the path of a socket, such as /run/redis.sock, or a URL, such as rediss://weir@127.0.0.1:6379/0; or there must be sentinel or cluster in its place`,
		}, {
			"replica without a port", "backend: redis\nredis:\n  shards:\n    - name: a\n      primary: 127.0.0.1:1\n      replicas: [127.0.0.1:2, localhost]\n",
			`weir.yaml:6: redis.shards[0].replicas[1] is "localhost"; it must be a host and a port, such as 127.0.0.1:8080`,
		}, {
			"policy without limits", "policies:\n  core: {limits: []}\n",
			`weir.yaml:2: policy "core" has 0 limits; it must have from 1 to 16`,
		}, {
			"policy with nothing", "policies:\n  core:\n",
			`weir.yaml:2: policy "core" has 0 limits; it must have from 1 to 16`,
		}, {
			"policy name", "policies:\n  two words: {limits: [{quota: 1, window: 1s}]}\n",
			`weir.yaml:2: policy name is "two words"; it must be 1 to 64 letters, digits, and . _ - / :`,
		}, {
			"quota is no number", "policies:\n  a.b:\n    limits:\n      - window: 60s\n        quota: many\n",
			`weir.yaml:5: policies."a.b".limits[0].quota is "many"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"quota is no whole number", "policies: {core: {limits: [{quota: 4.5, window: 60s}]}}\n",
			`weir.yaml:1: policies.core.limits[0].quota is "4.5"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"quota is beyond int64", "policies: {core: {limits: [{quota: 99999999999999999999, window: 60s}]}}\n",
			`weir.yaml:1: policies.core.limits[0].quota is "99999999999999999999"; it must be at most 9007199254740992 (2^53)`,
		}, {
			"quota below zero", "policies: {core: {limits: [{quota: -1, window: 60s}]}}\n",
			`weir.yaml:1: policies.core.limits[0].quota is "-1"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"quota missing", "policies:\n  core:\n    limits:\n      - window: 60s\n",
			`weir.yaml:4: policies.core.limits[0].quota is missing; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"a limit in words that is none", "policies:\n  core:\n    limits:\n      - 60 each 1h\n",
			`weir.yaml:4: policies.core.limits[0] is "60 each 1h"; it must be a quota, per, and a window, such as 10 per 1m, 10/hour, 10 per 30 days or 10 per month`,
		}, {
			"a limit in words that no policy may have", "policies: {core: {limits: [60 per 1h burst 5]}}\n",
			`weir.yaml:1: policies.core.limits[0]: limit is "60 per 1h burst 5": burst is 5; only a token-bucket or a leaky-bucket has one, not a fixed-window`,
		}, {
			"window without a unit", "policies: {core: {limits: [{quota: 1, window: 60}]}}\n",
			`weir.yaml:1: policies.core.limits[0].window is "60"; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"window missing", "policies: {core: {limits: [{quota: 1}]}}\n",
			`weir.yaml:1: policies.core.limits[0].window is missing; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"window too long", "policies:\n  core:\n    limits:\n      - {quota: 1, window: 1h}\n      - {quota: 2, window: 9000h}\n",
			`weir.yaml:5: policy "core": limit 1: window is 9000h0m0s; it must be from 1ms to 8784h0m0s (366 days)`,
		}, {
			"two limits of one window", "policies:\n  core: {limits: [{quota: 1, window: 1h}, {quota: 2, window: 1h}]}\n",
			`weir.yaml:2: policy "core": limits 0 and 1 are both a fixed-window of 1h0m0s; only the smaller quota could ever refuse, so keep that one`,
		}, {
			"unknown algorithm", "policies:\n  core:\n    limits:\n      - quota: 1\n        window: 1h\n        algorithm: gcra\n",
			`weir.yaml:6: policies.core.limits[0].algorithm is "gcra"; it must be one of ` + fmt.Sprintf("%q", algorithms),
		}, {
			"aligned is no truth", "policies: {core: {limits: [{quota: 1, window: 1h, aligned: perhaps}]}}\n",
			`weir.yaml:1: policies.core.limits[0].aligned is "perhaps"; it must be true or false`,
		}, {
			"burst of a window", "policies: {core: {limits: [{quota: 1, window: 1h, burst: 3}]}}\n",
			`weir.yaml:1: policy "core": limit 0: burst is 3; only a token-bucket or a leaky-bucket has one, not a fixed-window`,
		}, {
			"burst of zero", "policies: {core: {limits: [{quota: 1, window: 1h, algorithm: token-bucket, burst: 0}]}}\n",
			`weir.yaml:1: policies.core.limits[0].burst is "0"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"max_wait without a unit", "policies: {core: {limits: [{quota: 1, window: 1h, algorithm: leaky-bucket, max_wait: 2}]}}\n",
			`weir.yaml:1: policies.core.limits[0].max_wait is "2"; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"deadline of zero", "deadline: 0s\n",
			`weir.yaml:1: deadline is "0s"; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"deadline that nothing meets", "deadline: 1ns\n",
			`weir.yaml:1: deadline is "1ns"; it must be from 1ms to 30s`,
		}, {
			"deadline beyond patience", "deadline: 1h\n",
			`weir.yaml:1: deadline is "1h"; it must be from 1ms to 30s`,
		}, {
			"quota in octal", "policies: {core: {limits: [{quota: 010, window: 60s}]}}\n",
			`weir.yaml:1: policies.core.limits[0].quota is "010"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"a value without end", "on_failure: " + strings.Repeat("a", 1000) + "\n",
			`weir.yaml:1: on_failure is "` + strings.Repeat("a", 80) + `"…; it must be one of ["open" "local" "closed"]`,
		}, {
			"a key without end", strings.Repeat("a", 1000) + ": 1\n",
			`weir.yaml:1: unknown key "` + strings.Repeat("a", 80) + `"…; the keys here are listen, backend, redis, memcached, shares, seed, prefix, flags, shadow, refusal_cache, roots, policies_at, policies, dry_runs, deadline, on_failure, open_for, processes`,
		}, {
			"unknown failure policy", "on_failure: serve\n",
			`weir.yaml:1: on_failure is "serve"; it must be one of ["open" "local" "closed"]`,
		}, {
			"unknown failure policy of a policy", "policies:\n  core: {limits: [{quota: 1, window: 1h}], on_failure: 503}\n",
			`weir.yaml:2: policies.core.on_failure is "503"; it must be one of ["open" "local" "closed"]`,
		}, {
			"local without processes", "policies:\n  core:\n    limits: [{quota: 1, window: 1h}]\n    on_failure: local\non_failure: local\n",
			"weir.yaml:4: policies.core.on_failure is local, which needs processes: how many processes share the backend, such as processes: 3\n" +
				"weir.yaml:5: on_failure is local, which needs processes: how many processes share the backend, such as processes: 3",
		}, {
			"a seed that is none", "seed: 0x5eed\n",
			`weir.yaml:1: seed is "0x5eed"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"no processes", "on_failure: local\nprocesses: 0\n",
			`weir.yaml:2: processes is "0"; it must be a whole number, 1 or more, in decimal digits, such as 60`,
		}, {
			"too many processes", "processes: 1048577\n",
			`weir.yaml:1: processes is "1048577"; it must be at most 1048576`,
		}, {
			"open_for without a unit", "open_for: 60\n",
			`weir.yaml:1: open_for is "60"; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		}, {
			"a dry run has no outages", "dry_runs:\n  core: {limits: [{quota: 1, window: 1h}], on_failure: open}\n",
			`weir.yaml:2: unknown key on_failure; the keys here are limits`,
		}, {
			"all at once", "on_failure: no\nlisten: 1\nlisten: 2\nfoo: 1\npolicies:\n  core: {limits: [{quota: 010, window: 5}]}\n  b: 3\nbackend: disk\n",
			"weir.yaml:1: on_failure is \"no\"; it must be one of [\"open\" \"local\" \"closed\"]\n" +
				"weir.yaml:2: listen is \"1\"; it must be a host and a port, such as 127.0.0.1:8080\n" +
				"weir.yaml:3: listen is set twice, first in line 2\n" +
				"weir.yaml:4: unknown key foo; the keys here are listen, backend, redis, memcached, shares, seed, prefix, flags, shadow, refusal_cache, roots, policies_at, policies, dry_runs, deadline, on_failure, open_for, processes\n" +
				"weir.yaml:6: policies.core.limits[0].quota is \"010\"; it must be a whole number, 1 or more, in decimal digits, such as 60\n" +
				"weir.yaml:6: policies.core.limits[0].window is \"5\"; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d\n" +
				"weir.yaml:7: policies.b is \"3\"; it must be a quota, per, and a window, such as 10 per 1m, 10/hour, 10 per 30 days or 10 per month\n" +
				"weir.yaml:8: backend is \"disk\"; it must be memory, redis, redis-resharded, memcached or shares",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := parse("weir.yaml", test.text)
			if err == nil {
				t.Fatalf("got %+v, want an error", c)
			}
			if err.Error() != test.want {
				t.Errorf("got  %s\nwant %s", err, test.want)
			}
		})
	}
}

// TestConfigOfAnotherShape tries values of the wrong kind, and other features of YAML.
func TestConfigOfAnotherShape(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "weir.yaml: the file is empty; any key may be left out, but not all of them",
		"# listen: 1\n":                    "weir.yaml: the file is empty; any key may be left out, but not all of them",
		"---\n":                            "weir.yaml: the file is empty; any key may be left out, but not all of them",
		"policies: 3\n":                    `weir.yaml:1: policies is "3"; it must be a mapping, and each value a mapping with limits, unit, `,
		"- a\n- b\n":                       "weir.yaml:1: the file is a list; it must be a mapping with listen, backend, ",
		"\nlisten: {a: b}\n":               "weir.yaml:2: listen is a mapping; it must be a host and a port, such as 127.0.0.1:8080",
		"policies:\n core: {limits: {}}\n": "weir.yaml:2: policies.core.limits.quota is missing; it must be a whole number, ",
		"policies: {core: {limits: [{quota: [60], window: 1h}]}}\n": "weir.yaml:1: policies.core.limits[0].quota is a list; it must be a whole number, ",
		"deadline: 50ms\n\tlisten: x\n":                             "weir.yaml:2: the line begins with a tab; indent it by spaces, as YAML asks",
		"a: 1\n b: 2\n":                                             "weir.yaml:2: mapping values are not allowed in this context",
		"redis: [a]\n":                                              "weir.yaml:1: redis is a list; it must be a mapping with shards, resharded",
		"memcached: {servers: [[a]]}\n":                             "weir.yaml:1: memcached.servers[0] is a list; it must be a mapping with name, address",
		"? [a]\n: b\n":                                              "weir.yaml:1: the file: a key is a list; it must be a word",
		"~: b\n":                                                    "weir.yaml:1: the file: a key is missing; it must be a word",
		"on_failure: !!str open\n":                                  "weir.yaml:1: on_failure has the tag !!str; leave the tag out",
		"deadline: !seconds 5\n":                                    "weir.yaml:1: deadline has the tag !seconds; leave the tag out",
		"listen: \"a\nb: 3\n":                                       "weir.yaml:3: found unexpected end of stream, while scanning a quoted scalar that begins in line 1",
		"listen: a\ndeadline: \xff\n":                               "weir.yaml:2: the text is not UTF-8",
		"\xff\xfel\x00":                                             "weir.yaml:1: the text is not UTF-8",
		"listen: \x00\n":                                            "weir.yaml:1: the line has a control character",
		strings.Repeat("[", 20_000):                                 "weir.yaml:1: exceeded max depth of 10000",
		"policies: &p {core: *p}\n":                                 "weir.yaml:1: unknown key core; the keys here are limits, unit, hidden, parent, parent_key, on_failure",
		"policies:\n  <<: {core: 3}\n":                              `weir.yaml:2: policies.<<.core is "3"; it must be a quota, per, and a window`,
		"policies: &a {x: [1]}\ndry_runs: *a\n":                     "weir.yaml:1: ",
		"listen: *nowhere\n":                                        "weir.yaml:1: unknown anchor 'nowhere' referenced; write the value itself",
	} {
		c, err := parse("weir.yaml", text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %+v, error %v, want %q", text, c, err, want)
		}
	}
}

func TestRefusalCacheIsOnWhereItSavesARoundTrip(t *testing.T) {
	dir := writeFiles(t, map[string]string{"flags.yaml": "{}"})
	const redis, memcached = "redis: {shards: [{name: a, primary: 127.0.0.1:1}]}\n", "memcached: {servers: [127.0.0.1:1]}\n"
	for text, want := range map[string]bool{
		"backend: memory\n":                                     false,
		"backend: memory\nrefusal_cache: false\n":               false,
		"backend: memory\nshadow: redis\n" + redis:              false, // the shadow is off the request's path
		"backend: memory\nflags: flags.yaml\n" + redis:          true,
		"backend: redis\n" + redis:                              true,
		"backend: redis\nrefusal_cache: true\n" + redis:         true,
		"backend: redis\nrefusal_cache:\n" + redis:              true,
		"backend: redis\nrefusal_cache: {except: []}\n" + redis: true,
		"backend: redis\nrefusal_cache: false\n" + redis:        false,
		"backend: memcached\n" + memcached:                      true,
	} {
		c, err := parse(filepath.Join(dir, "weir.yaml"), text)
		if err != nil || !c.keys.RefusalCache.disabled != want {
			t.Errorf("%q: got %+v, error %v, want %v", text, c, err, want)
		}
	}
}

// TestConfigBombs checks that a small file cannot become a large one.
func TestConfigBombs(t *testing.T) {
	bomb := "policies:\n  a0: &a0 {limits: [{quota: 1, window: 1s}]}\n"
	for i := range 40 {
		bomb += fmt.Sprintf("  a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	if _, err := parse("weir.yaml", bomb); err == nil || strings.Count(err.Error(), "\n") != 39 {
		t.Errorf("got %.1000v, want an error for each of the 39 lists that are items of others, and one for the key limits", err)
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

// TestSequentialConfigTimeIsLinear compares the times of small and large files. The time for n
// policies once grew with n², because each value was searched from the top of the file: 20,000
// took 18.5 s. It measures processor time: a busy machine interrupts the long runs.
func TestSequentialConfigTimeIsLinear(t *testing.T) {
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
			c, err := parse("weir.yaml", text)
			if err != nil {
				t.Fatal(err)
			}
			c.Warnings()
			best = min(best, spent()-began)
		}
		return best
	}
	small, large := fastest(few), fastest(times*few)
	if large > small*times*times/3 {
		t.Errorf("%d policies take %v, %d take %v: more than in proportion", few, small, times*few, large)
	}
}

func TestSequentialConfigOfManyPolicies(t *testing.T) {
	const policies = 5000
	text := manyPolicies(policies)
	c, err := parse("weir.yaml", text)
	if err != nil || len(c.Policies) != policies+len(programPolicies) {
		t.Fatalf("%d policies, error %v", len(c.Policies), err)
	}
	warnings := c.Warnings()
	if want := `nothing uses the policies "p0", "p1", "p10", and 4997 more; the program uses `; len(warnings) != 1 || !strings.HasPrefix(warnings[0], want) {
		t.Errorf("got warnings %.300q, want one, %q…", warnings, want)
	}

	wrong := strings.ReplaceAll(manyPolicies(1000), "quota: 60", "quota: 060")
	if _, err := parse("weir.yaml", wrong); err == nil || strings.Count(err.Error(), "\n")+1 != 1000 {
		t.Errorf("1000 wrong policies: got %.100v…", err)
	}

	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, make([]byte, maxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file, nil); err == nil || err.Error() != file+": the file has more than 8388608 bytes" {
		t.Errorf("a file that is too large: got %v", err)
	}
}

// Mistakes in one line are reported in the same order each time.
func TestMistakesOfOneLine(t *testing.T) {
	const policies = "policies: {core: {limits: 1 per 1s, on_failure: local}, org: {limits: 1 per 1s, on_failure: local}, search: {limits: 1 per 1s, on_failure: local}}"
	_, first := parse("weir.yaml", policies)
	for range 20 {
		if _, err := parse("weir.yaml", policies); first == nil || err == nil || err.Error() != first.Error() {
			t.Fatalf("%v\nand then\n%v", first, err)
		}
	}
}

func TestByteOrderMarkIsNoMistake(t *testing.T) {
	if c, err := parse("weir.yaml", "\ufeffbackend: memory\n"); err != nil || c.Backend != "memory" {
		t.Errorf("got %+v, error %v", c, err)
	}
	if _, err := parse("weir.yaml", "\ufeff\r\nlisten: 81\r\n"); err == nil || !strings.HasPrefix(err.Error(), "weir.yaml:2: listen is") {
		t.Errorf("got %v, want an error in line 2", err)
	}
}

// TestNumbersAreDecimal checks that no number is read as a different one.
func TestNumbersAreDecimal(t *testing.T) {
	for _, quota := range []string{"010", "0x10", "0o10", "0b11", "1_000", "1e3", "1E3", "+5", "5.0", "5.", ".inf", "1,000", "٣", "' 5'", "0", "-0", "true", "1:30"} {
		if _, err := parse("weir.yaml", fmt.Sprintf("policies: {core: {limits: [{quota: %s, window: 1h}]}}\n", strings.Replace(quota, "1,000", "'1,000'", 1))); err == nil || !strings.Contains(err.Error(), "in decimal digits") {
			t.Errorf("quota: %s: got %v, want an error that says what would be right", quota, err)
		}
	}
	for _, window := range []string{"60", "1_000s", "1e3s", "0x10s", "-1s", "1.5d", "01d", "inf", "9999999999h"} {
		if _, err := parse("weir.yaml", fmt.Sprintf("policies: {core: {limits: [{quota: 1, window: %s}]}}\n", window)); err == nil || !strings.Contains(err.Error(), "with its unit") {
			t.Errorf("window: %s: got %v, want an error that says what would be right", window, err)
		}
	}
}

func at(addr string) server {
	return server{Primary: location(addr), options: redis.UniversalOptions{Addrs: []string{addr}}}
}

func TestConfigIsReadWhole(t *testing.T) {
	dir := writeFiles(t, map[string]string{"flags.yaml": "{}"})
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
seed: 7
flags: flags.yaml
shadow: memory
refusal_cache: {except: [search, queue]}
roots: [127.0.0.1:7008, {name: r, primary: 127.0.0.1:7009, group: far}]
dry_runs:
  core: {limits: [{quota: 4, window: 90s, aligned: true}]}
  search: 5 per 1m
policies:
  core: {limits: [{quota: 5, window: 90s, aligned: true}], on_failure: local, consistency: leased, was: synced, sync: 1s, low: 0.5}
  burst: [10 per 1s token-bucket burst 30, {quota: 100, window: 1d}]
  queue: {limits: [{quota: 10, window: 1s, algorithm: leaky-bucket, max_wait: 2s}], on_failure: open}
  short: {limits: 7 per 1h, unit: input-tokens, hidden: true}
deadline: 20ms
on_failure: closed
open_for: 1m
processes: 3
`
	own := &program{}
	got, err := Parse(filepath.Join(dir, "weir.yaml"), []byte(text), &Options{Policies: programPolicies, Program: own})
	if err != nil {
		t.Fatal(err)
	}
	if own.Listen != "[::1]:9000" {
		t.Errorf("the program's key is %q", own.Listen)
	}
	open, local, closed, leased, synced := fallback.Open, fallback.Local, fallback.Closed, consistency.Leased, consistency.Synced
	want := keys{
		Backend: "redis",
		Redis: redisKeys{
			Shards: []shard{
				{Name: "a", server: at("127.0.0.1:7001"), Replicas: []Address{"127.0.0.1:7002"}},
				{Name: "b", server: at("127.0.0.1:7003")},
			},
			Resharded: []shard{{Name: "a", server: at("127.0.0.1:7005")}},
		},
		Memcached:    memcachedKeys{[]memcachedServer{{"127.0.0.1:7006", "127.0.0.1:7006"}, {"m", "127.0.0.1:7007"}}},
		Seed:         7,
		Flags:        file{filepath.Join(dir, "flags.yaml"), []byte("{}")},
		Shadow:       "memory",
		RefusalCache: &refusalCache{Except: []string{"search", "queue"}},
		Roots:        []root{{Name: "127.0.0.1:7008", server: at("127.0.0.1:7008")}, {Name: "r", Group: "far", server: at("127.0.0.1:7009")}},
		Policies: map[string]policy{
			"core": {
				Limits:    limits{{Quota: 5, Window: 90 * time.Second, Aligned: true}},
				OnFailure: &local, Level: &leased, Was: &synced, Sync: duration(time.Second), Low: 0.5,
			},
			"burst": {Limits: limits{{Quota: 10, Window: time.Second, Algorithm: quota.TokenBucket, Burst: 30}, {Quota: 100, Window: 24 * time.Hour}}},
			"queue": {Limits: limits{{Quota: 10, Window: time.Second, Algorithm: quota.LeakyBucket, MaxWait: 2 * time.Second}}, OnFailure: &open},
			"short": {Limits: limits{{Quota: 7, Window: time.Hour}}, Unit: quota.InputTokens, Hidden: true},
		},
		DryRuns:   map[string]dryRun{"core": {limits{{Quota: 4, Window: 90 * time.Second, Aligned: true}}}, "search": {limits{{Quota: 5, Window: time.Minute}}}},
		Deadline:  duration(20 * time.Millisecond),
		OnFailure: &closed,
		OpenFor:   duration(time.Minute),
		Processes: 3,
	}
	if !reflect.DeepEqual(got.keys, want) {
		t.Errorf("got  %+v\nwant %+v", got.keys, want)
	}
	policies := map[string]*quota.Policy{"search": programPolicies[1], "auth.createToken": programPolicies[2], "org": programPolicies[3]}
	for name, limits := range map[string][]quota.Limit{
		"core":  {{Quota: 5, Window: 90 * time.Second, Aligned: true}},
		"burst": {{Quota: 10, Window: time.Second, Algorithm: quota.TokenBucket, Burst: 30}, {Quota: 100, Window: 24 * time.Hour}},
		"queue": {{Quota: 10, Window: time.Second, Algorithm: quota.LeakyBucket, MaxWait: 2 * time.Second}},
		"short": {{Quota: 7, Window: time.Hour}},
	} {
		policies[name] = &quota.Policy{Name: name, Limits: limits}
	}
	policies["short"].Unit, policies["short"].Hidden = quota.InputTokens, true
	if !reflect.DeepEqual(got.Policies, policies) {
		t.Errorf("got policies %+v, want %+v", got.Policies, policies)
	}
	if p := got.DryRuns["core"]; len(got.DryRuns) != 2 || p.Name != "core.dry-run" || p.Limits[0].Quota != 4 {
		t.Errorf("got dry runs %+v", got.DryRuns)
	}
	if p := got.DryRun("queue"); p.Name != "queue.dry-run" || !reflect.DeepEqual(p.Limits, got.Policies["queue"].Limits) {
		t.Errorf("a policy without a dry run is tried under %+v", p)
	}
	if got.Backend != "redis" || got.Deadline != 20*time.Millisecond || !reflect.DeepEqual(got.Levels, map[string]consistency.Level{"core": leased}) || got.initialLevel("core") != synced {
		t.Errorf("got %+v", got)
	}
	warnings := []string{`nothing uses the policies "burst", "queue", "short"; the program uses core, search, auth.createToken, org`}
	if w := got.Warnings(); !slices.Equal(w, warnings) {
		t.Errorf("got warnings %q, want %q", w, warnings)
	}
}

// TestConfigurationPageIsRight reads the files that docs/reference/configuration.md shows.
func TestConfigurationPageIsRight(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := writeFiles(t, map[string]string{"redis.password": "secret\n", "flags.yaml": "{}"})
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 2 {
		t.Errorf("the page has %d files, want the whole and the shards", len(blocks))
	}
	for i, block := range blocks {
		c, err := Parse(filepath.Join(dir, "configuration.md"), []byte(block[1]), nil)
		if err != nil || len(c.keys.Redis.Shards) < 2 {
			t.Errorf("file %d: got %+v, error %v", i, c, err)
		}
	}
}

// A policy may be written as its limits alone, and a single limit without a list.
func TestShortFormsOfPolicies(t *testing.T) {
	want := []quota.Limit{{Quota: 10, Window: time.Minute, Algorithm: quota.TokenBucket}}
	for _, text := range []string{
		"10 per 1m token-bucket", "[10 per 1m token-bucket]", "{quota: 10, window: 1m, algorithm: token-bucket}", "[{quota: 10, window: 60s, algorithm: token-bucket}]",
		"{limits: 10 per 1m token-bucket}", "{limits: {quota: 10, window: 1m, algorithm: token-bucket}, consistency: exact}", "{limits: [10 per 1m token-bucket], on_failure: open}",
	} {
		c, err := Parse("weir.yaml", []byte("policies: {core: "+text+"}\ndry_runs: {core: 9 per 1m}\n"), nil)
		if err != nil || !reflect.DeepEqual(c.Policies["core"].Limits, want) || c.DryRuns["core"].Limits[0].Quota != 9 {
			t.Errorf("%s: got %+v, error %v", text, c, err)
		}
	}
	c, err := Parse("weir.yaml", []byte("policies: {core: 5000 per month in Europe/Berlin from day 31}\n"), nil)
	if err != nil || c.Policies["core"].Limits[0] != (quota.Limit{Quota: 5000, Calendar: quota.Calendar{Period: quota.Month, Zone: "Europe/Berlin", Day: 31}}) {
		t.Errorf("a calendar: got %+v, error %v", c, err)
	}
	_, err = Parse("weir.yaml", []byte("policies:\n  core: {quota: 10, windw: 1m}\n"), nil)
	const wrong = "weir.yaml:2: unknown key windw; did you mean window? The keys here are quota, window, algorithm, aligned, burst, max_wait"
	if err == nil || err.Error() != wrong {
		t.Errorf("got %v, want %s", err, wrong)
	}
}

// Anchors, aliases and merge keys work anywhere, with short forms too. A mistake is in the line
// that has the value, once, whatever number of aliases name it.
func TestAliasesAndMergeKeys(t *testing.T) {
	const text = `
backend: redis
redis:
  shards:
    - &shard {name: a, primary: 127.0.0.1:1, username: &user weir}
    - {<<: *shard, name: b, primary: 127.0.0.1:2}
roots: [&root 127.0.0.1:1, {<<: [{username: *user}, {group: far}], primary: 127.0.0.1:3}]
policies:
  core: &core {limits: &limits [&limit 60 per 1h aligned], consistency: leased}
  search: {<<: *core, consistency: synced}
  a.b: *limits
  c: *limit
  d: {<<: {quota: 5, window: 1m}, burst: 7, algorithm: token-bucket}
dry_runs: {core: *limit, search: {limits: *limits}}
`
	c, err := Parse("weir.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	hourly := quota.Limit{Quota: 60, Window: time.Hour, Aligned: true}
	for _, name := range []string{"core", "search", "a.b", "c"} {
		if got := c.Policies[name].Limits; len(got) != 1 || got[0] != hourly {
			t.Errorf("%s has %v", name, got)
		}
	}
	if got := c.Policies["d"].Limits[0]; got.Quota != 5 || got.Burst != 7 {
		t.Errorf("d has %v", got)
	}
	if c.Levels["core"] != consistency.Leased || c.Levels["search"] != consistency.Synced || len(c.DryRuns) != 2 {
		t.Errorf("levels %v, dry runs %v", c.Levels, c.DryRuns)
	}
	if s := c.keys.Redis.Shards[1]; s.Name != "b" || s.options.Username != "weir" || s.options.Addrs[0] != "127.0.0.1:2" {
		t.Errorf("a merged shard is %+v", s)
	}
	if r := c.keys.Roots[1]; r.Group != "far" || r.options.Username != "weir" {
		t.Errorf("a merged root is %+v", r)
	}
	for text, want := range map[string]string{
		"policies:\n  core: &p {limits: 0 per 1h}\n  search: *p\n  org: {<<: *p}\n":                                  `weir.yaml:2: policies.core.limits: limit is "0 per 1h": quota is "0"; it must be a whole number from 1 to`,
		"policies:\n  core: &p\n    limits: 1 per 1h\n    consistency: exact\n  search: *p\ndry_runs:\n  core: *p\n": "weir.yaml:4: unknown key consistency; the keys here are limits",
		"policies:\n  core: {limits: 1 per 1h}\n  search: {<<: 5}\n":                                                 "weir.yaml:3: policies.search.<<: map merge requires map or sequence of maps as the value; write the value itself",
		"policies: &p {<<: *p}\n": "weir.yaml:1: cyclic merge alias; write the value itself",
	} {
		if _, err := Parse("weir.yaml", []byte(text), nil); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

// Environments with different prefixes share no counts, no policies and no synced totals.
func TestPrefixes(t *testing.T) {
	server := testserver.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	memcached := testserver.Memcached(t)
	for _, text := range []string{
		"backend: redis\nredis: {shards: [{name: a, primary: 'ADDR'}]}\nshadow: memcached\nmemcached: {servers: ['CACHE']}\nrefusal_cache: false\n",
		"backend: memcached\nmemcached: {servers: ['CACHE']}\nrefusal_cache: false\n",
	} {
		text = strings.NewReplacer("ADDR", server.Addr, "CACHE", memcached.Addr).Replace(text)
		for _, prefix := range []string{"", "prefix: 'a:'\n", "prefix: 'b:'\n"} {
			s, err := Parse("weir.yaml", []byte(text+prefix+"deadline: 5s\npolicies: {core: 1 per 1000h aligned}\n"), nil)
			if err != nil {
				t.Fatal(err)
			}
			opened, err := s.Open()
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []bool{true, false} {
				if d, err := opened.Throttler.Take(t.Context(), s.Policies["core"].Charge("alice")); err != nil || d.Allowed != want {
					t.Errorf("%s%s: take %d: %v, %v; want allowed %t", text, prefix, i, d, err, want)
				}
			}
			if err := opened.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	keys, err := client.Keys(t.Context(), "*").Result()
	slices.Sort(keys)
	if err != nil || len(keys) != 3 || !strings.HasPrefix(keys[0], "a:weir:") || !strings.HasPrefix(keys[1], "b:weir:") || !strings.HasPrefix(keys[2], "weir:") {
		t.Errorf("keys %q, error %v", keys, err)
	}
	for text, want := range map[string]string{
		"prefix: a\n":     "weir.yaml:1: prefix is set, but counts live in memory, which no other process shares; leave it out, or choose another backend",
		"prefix: '{a}'\n": `weir.yaml:1: prefix is "{a}"; it must be 1 to 64 letters, digits, and . _ - / :, such as staging:`,
	} {
		if _, err := parse("weir.yaml", text); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	c, err := Parse("weir.yaml", []byte("prefix: 'a:'\nroots: ['127.0.0.1:1']\npolicies: {core: {limits: 1 per 1h aligned, consistency: exact}}\n"), nil)
	if err != nil || c.syncedOptions().Prefix != "a:weir-sync:" {
		t.Errorf("%v: the roots have the prefix %q", err, c.syncedOptions().Prefix)
	}
}

// A program without policies uses the file's. If a policy of the program has no limits, the
// file must have them.
func TestPoliciesOfTheProgram(t *testing.T) {
	c, err := Parse("weir.yaml", []byte("policies: {cor: 1 per 1s}\n"), nil)
	if err != nil || len(c.Policies) != 1 || c.Policies["cor"].Name != "cor" || len(c.Warnings()) > 0 {
		t.Errorf("got %+v, error %v", c, err)
	}
	needs := &Options{Policies: []*quota.Policy{{Name: "core"}}}
	if _, err := Parse("weir.yaml", []byte("policies:\n  cor: 1 per 1s\n"), needs); err == nil || err.Error() !=
		"weir.yaml:2: policies.core is missing, and the program uses it; write its limits, such as core: 60 per 1h\n"+
			"weir.yaml:2: policies.cor is no policy of the program; did you mean core? It uses core" {
		t.Errorf("got error %v", err)
	}
	if c, err := Parse("weir.yaml", []byte("policies: {core: 1 per 1s}\n"), needs); err != nil || c.Policies["core"].Limits[0].Quota != 1 {
		t.Errorf("got %+v, error %v", c, err)
	}
}

// The file's limits replace the program's, so a middleware for the program's own policy is an error.
func TestLimitsThatTheFileReplaces(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte("policies: {core: 2 per 1h}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mine := quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: 100, Window: time.Hour}}}
	s, err := Open(file, &Options{Policies: []*quota.Policy{&mine}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key := middleware.ClientIP(nil)
	if _, err := middleware.New(s.Throttler, middleware.Limit(&mine, key), nil); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("for the program's policy, error %v", err)
	}
	if _, err := middleware.New(s.Throttler, middleware.Limit(s.Config.Policies["core"], key), nil); err != nil {
		t.Error(err)
	}
}

func TestEmptyConfigIsTheDefault(t *testing.T) {
	for _, text := range []string{"{}\n", "policies: {}\n", "policies:\n"} {
		c, err := parse("weir.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		if c.Backend != "memory" || c.Deadline != 50*time.Millisecond || len(c.Policies) != len(programPolicies) || c.Remote() || !c.keys.RefusalCache.disabled {
			t.Errorf("%q: got %+v, want the defaults", text, c)
		}
		if w := c.Warnings(); len(w) != 0 {
			t.Errorf("the defaults warn: %q", w)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("policies:\n  core: {limits: [{quota: 5, window: 90s, aligned: true}]}\n")
	f.Add("backend: redis\nredis:\n  shards:\n    - {name: a, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002]}\n")
	f.Add("backend: redis\nredis:\n  shards:\n    - {name: a, primary: 'rediss://u:p@a/1', tls: {server_name: b}, username: u, password_file: p}\n")
	f.Add("backend: redis\nredis:\n  shards:\n    - {name: a, sentinel: {master: m, addrs: ['a:1']}, replicas: ['b:1'], tls: true}\n    - {name: b, cluster: ['a:1']}\n")
	f.Add("policies:\n  core: {limits: [5 per 1d aligned, 1 per 1s token-bucket burst 3]}\n")
	f.Add("listen: 127.0.0.0:8\ndeadline: 50ms\non_failure: local\nprocesses: 3\nopen_for: 1m\n")
	f.Add("memcached: {servers: [127.0.0.1:1, {name: a, address: 127.0.0.1:2}]}\nshadow: memcached\n")
	f.Add("backend: memcached\nmemcached: {servers: [127.0.0.1:1]}\nrefusal_cache: {except: [search]}\n")
	f.Add("!tag\nbackend: 1\n")
	f.Add("redis: {shards: {0}}\n")
	f.Add(": &r [!t {a, {b}}]\npolicies_at: *r\n")
	f.Add("roots: &r [&a 'a:1', {<<: {group: g}, primary: 'b:1', tls: {ca_file: *a}}]\npolicies_at: *r\npolicies: {<<: {a: &l [1 per 1s]}, b: {limits: *l, consistency: exact}, c: !t 5}\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse("weir.yaml", text)
		if err != nil {
			// The whole file has no line.
			for _, line := range strings.Split(err.Error(), "\n") {
				if !regexp.MustCompile(`^weir\.yaml:(\d+: | the file is empty)`).MatchString(line) {
					t.Errorf("%q: the error has no line: %s", text, line)
				}
			}
			return
		}
		for name, p := range c.Policies {
			if err := p.Validate(); err != nil || p.Name != name {
				t.Errorf("%q: accepted policy %q: %+v, %v", text, name, p, err)
			}
		}
		if c.Deadline < time.Millisecond || c.Deadline > 30*time.Second {
			t.Errorf("%q: accepted deadline %v", text, c.Deadline)
		}
		c.Warnings()
		if err := c.Check(); err != nil && c.Backend == "memory" && len(c.Levels) == 0 {
			t.Errorf("%q: the configuration is right, and cannot be opened: %v", text, err)
		}
	})
}

// The level of a policy does not change if its dry run cannot be in the new level.
func TestLevelsChangeTogether(t *testing.T) {
	window := quota.Limit{Quota: 20, Window: time.Hour}
	log := window
	log.Algorithm = quota.SlidingLog
	table, err := consistency.NewTable(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &Stack{Stack: &guard.Stack{Levels: table}, Config: &Config{
		Policies: map[string]*quota.Policy{"core": {Name: "core", Limits: []quota.Limit{window}}},
		DryRuns:  map[string]*quota.Policy{"core": {Name: "next", Limits: []quota.Limit{log}}},
	}}
	if err := s.setLevel("core", consistency.Synced); err == nil {
		t.Error("a dry run with a log is synced")
	}
	if s := table.State("core"); s != (consistency.State{}) {
		t.Errorf("core is %+v; the level was not changed", s)
	}
}
