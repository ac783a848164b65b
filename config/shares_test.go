package config

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

const sharesKey = "0123456789abcdef0123456789abcdef\n"

func TestSharesConfig(t *testing.T) {
	dir := writeFiles(t, map[string]string{"key": sharesKey})
	c, err := parse(filepath.Join(dir, "weir.yaml"), `
backend: shares
shares: {self: "127.0.0.1:1", listen: ":9001", members: ["127.0.0.1:1", "127.0.0.1:2"], epoch: 7, key_file: key, refresh: 2s}
policies:
  core: {limits: [{quota: 100, window: 1h, algorithm: token-bucket}]}
dry_runs:
  core: {limits: [{quota: 50, window: 1h, algorithm: token-bucket}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	s := c.keys.Shares
	if s.Self != "127.0.0.1:1" || s.Listen != ":9001" || s.list().Epoch != 7 || len(s.list().Members) != 2 || string(s.key)+"\n" != sharesKey || time.Duration(s.Refresh) != 2*time.Second {
		t.Errorf("got %+v", s)
	}
	for name, p := range c.Policies {
		if p.Limits[0].Algorithm != throttler.TokenBucket {
			t.Errorf("policy %s is a %v; want the default policies as token buckets", name, p.Limits[0].Algorithm)
		}
	}
	if !c.keys.RefusalCache.disabled {
		t.Error("refusals are cached in front of a backend in memory")
	}
	if w := c.Warnings(); len(w) != 0 {
		t.Errorf("got warnings %q", w)
	}
	s.Members = []Address{"127.0.0.1:2"}
	if w := c.Warnings(); len(w) != 1 || !strings.Contains(w[0], "shares.self is 127.0.0.1:1, which is not one of shares.members") {
		t.Errorf("got warnings %q; want that self is not a member", w)
	}
}

// A process without shares limits the requests that it serves, unless the file says otherwise.
func TestSharesThatAreNotThere(t *testing.T) {
	self := testserver.FreeAddr(t)
	for choice, want := range map[string]int{"": 30, "on_failure: open": 100, "on_failure: local": 30, "on_failure: closed": 0} {
		t.Run(choice, func(t *testing.T) {
			dir := writeFiles(t, map[string]string{"key": sharesKey})
			c, err := parse(filepath.Join(dir, "weir.yaml"), `
backend: shares
shares: {self: "`+self+`", members: ["`+self+`", "127.0.0.1:1", "127.0.0.1:2"], key_file: key}
policies:
  core: {limits: [{quota: 90, window: 1h, algorithm: token-bucket}]}
`+choice+"\n")
			if err != nil {
				t.Fatal(err)
			}
			s, err := c.Open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			served := 0
			for range 100 {
				d, err := s.Throttler.Take(t.Context(), c.Policies["core"].Charge("alice"))
				if err == nil && d.Allowed {
					served++
				}
			}
			if served != want {
				t.Errorf("%d of 100 requests were served before the first share; want %d, and a third of 90 by default", served, want)
			}
		})
	}
}

func TestSharesConfigErrors(t *testing.T) {
	dir := writeFiles(t, map[string]string{"key": sharesKey, "short": "secret\n"})
	const good = `self: "127.0.0.1:1", members: ["127.0.0.1:1"], key_file: key`
	for text, want := range map[string]string{
		"backend: shares\n":                                   "shares is empty; the shares backend needs at least self, members and key_file",
		"shares: {" + good + "}\n":                            "shares is set, but the backend is memory; write backend: shares",
		"backend: shares\nshares: {}\n":                       "shares.self is missing; it must be a host and a port",
		"backend: shares\nshares: {" + good + ", peers: 1}\n": "unknown key peers; the keys here are self, listen, members, epoch, key_file, refresh",
		"backend: shares\nshares: {self: here, members: [\"127.0.0.1:1\"], key_file: key}\n":                                                 `shares.self is "here"; it must be a host and a port`,
		"backend: shares\nshares: {self: \"127.0.0.1:1\", key_file: key}\n":                                                                  "shares.members is missing; it must be a list of the members' addresses",
		"backend: shares\nshares: {self: \"127.0.0.1:1\", members: [\"127.0.0.1:1\", \"127.0.0.1:1\"], key_file: key}\n":                     `shares.members[1] is "127.0.0.1:1", as shares.members[0] is; members must differ`,
		"backend: shares\nshares: {" + good + ", epoch: 0}\n":                                                                                `shares.epoch is "0"; it must be a whole number, 1 or more`,
		"backend: shares\nshares: {" + good + ", refresh: 1ms}\n":                                                                            `shares.refresh is "1ms"; it must be from 10ms to 1h0m0s`,
		"backend: shares\nshares: {self: \"127.0.0.1:1\", members: [\"127.0.0.1:1\"]}\n":                                                     "shares.key_file is missing; it must be a file with a key that all members share",
		"backend: shares\nshares: {self: \"127.0.0.1:1\", members: [\"127.0.0.1:1\"], key_file: none}\n":                                     `shares.key_file is "none": no such file`,
		"backend: shares\nshares: {self: \"127.0.0.1:1\", members: [\"127.0.0.1:1\"], key_file: short}\n":                                    "shares.key_file has a key of 6 bytes; it must have 32 or more",
		"backend: shares\nshares: {" + good + "}\nflags: short\n":                                                                            "flags is set, and so is shares",
		"backend: shares\nshares: {" + good + "}\nrefusal_cache: true\n":                                                                     "refusal_cache is set, but counts live in memory",
		"backend: shares\nshares: {" + good + "}\npolicies:\n  core: {limits: [{quota: 60, window: 1h}]}\n":                                  `policy "core": limit 0 is 60 per 1h0m0s (fixed-window), and the backend is shares; a window's count cannot be divided`,
		"backend: shares\nshares: {" + good + "}\ndry_runs:\n  core: {limits: [{quota: 60, window: 1h}]}\n":                                  `policy "core.dry-run": limit 0`,
		"backend: shares\nshares: {" + good + "}\npolicies:\n  core: {limits: [{quota: 60000000, window: 1h, algorithm: token-bucket}]}\n":   "the quota must be at most 4194303, because a bucket counts no further",
		"backend: shares\nshares: {self: \"127.0.0.1:1\", members: [\"a:1\", \"a:2\", \"a:3\", \"a:4\", \"a:5\", \"a:6\"], key_file: key}\n": `policy "auth.createToken": limit 1 is 5 per 3s (token-bucket), and the backend is shares; the quota and the burst must be at least 6, a unit for each member`,
	} {
		_, err := parse(filepath.Join(dir, "weir.yaml"), text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q in it", text, err, want)
		}
	}
}
