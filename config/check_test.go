package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler/quota"
)

// Check builds what Open builds, and connects to nothing.
func TestCheckBuildsWithoutDialing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var dialed atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			dialed.Add(1)
			_ = c.Close()
		}
	}()
	addr := listener.Addr().String()
	dir := writeFiles(t, map[string]string{"key": strings.Repeat("k", 32), "flags.yaml": `{}`})
	windows := "policies:\n  core: {limits: [{quota: 20, window: 1h%s}], consistency: %s}\n"
	for _, test := range []struct{ name, text, want string }{
		{"memory", "backend: memory\n", ""},
		{"exact", "backend: redis\nredis: {shards: [{name: a, primary: ADDR, replicas: [ADDR]}]}\n" + fmt.Sprintf(windows, "", "exact"), ""},
		{"leased", "backend: redis\nredis: {shards: [{name: a, primary: ADDR}]}\n" + fmt.Sprintf(windows, "", "leased"), ""},
		{"synced", "backend: redis\nredis: {shards: [{name: a, primary: ADDR}]}\n" + fmt.Sprintf(windows, ", aligned: true", "synced, sync: 10ms"), ""},
		{"Sentinels", "backend: redis\nredis: {shards: [{name: a, sentinel: {master: m, addrs: [ADDR]}}]}\n", ""},
		{"a Cluster", "backend: redis\nredis: {shards: [{name: a, cluster: [ADDR]}]}\n", ""},
		{"all at once", "backend: redis\nredis: {shards: [{name: a, primary: ADDR}], resharded: [{name: b, primary: ADDR}]}\nmemcached: {servers: [ADDR]}\nflags: flags.yaml\nshadow: memory\nrefusal_cache: true\non_failure: local\nprocesses: 3\n", ""},
		{"wrong flags", "backend: redis\nredis: {shards: [{name: a, primary: ADDR}]}\nmemcached: {servers: [ADDR]}\nflags: key\n", dir + "/key:1: the file is \"" + strings.Repeat("k", 32) + "\"; it must be a mapping, and each value a percentage from 0 to 100, such as 5 or 0.5"},
		{"shares", "backend: shares\nshares: {self: ADDR, members: [ADDR, '127.0.0.1:1'], key_file: key, refresh: 10ms}\n", ""},
		{"a long name", "backend: shares\nshares: {self: ADDR, members: [ADDR, '" + strings.Repeat("a", 253) + ":9001'], key_file: key}\n", "division: Members[1] has 258 bytes; a name has from 1 to 255"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := dir + "/weir.yaml"
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(test.text, "ADDR", "'"+addr+"'")), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := Read(file, &Options{Policies: programPolicies})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Check()
			if test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != file+": "+test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	_ = listener.Close()
	<-done
	if n := dialed.Load(); n != 0 {
		t.Errorf("the checks dialed %d times", n)
	}
}

// Open wraps the store as the file says.
func TestPartsOfAStack(t *testing.T) {
	dir := writeFiles(t, map[string]string{"flags.yaml": `{}`})
	const redis = "redis: {shards: [{name: a, primary: '127.0.0.1:1'}]}\n"
	for text, want := range map[string]string{
		"backend: memory\n": "memory",
		"backend: memory\npolicies: {core: {limits: 1 per 1h, consistency: exact}}\n":                 "memory levels",
		"backend: memory\nshadow: redis\n" + redis:                                                    "memory shadow:redis shadow",
		"backend: redis\n" + redis:                                                                    "redis fallback refusals",
		"backend: redis\nrefusal_cache: false\n" + redis:                                              "redis fallback",
		"backend: redis\nflags: flags.yaml\nmemcached: {servers: [a:1]}\n" + redis:                    "redis fallback refusals rollout",
		"backend: memory\nflags: flags.yaml\n" + redis:                                                "memory redis fallback refusals rollout",
		"backend: redis\npolicies: {core: {limits: 1 per 1h, consistency: exact}}\n" + redis:          "redis fallback leased levels refusals",
		"backend: redis\npolicies: {core: {limits: 1 per 1h aligned, consistency: synced}}\n" + redis: "redis fallback leased levels refusals synced",
	} {
		c, err := parse(dir+"/weir.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.open(true)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, part := range []struct {
			name string
			is   bool
		}{
			{"memory", s.Memory != nil}, {"redis", s.Redis["redis"] != nil}, {"shadow:redis", s.Redis["shadow"] != nil},
			{"fallback", s.Fallback != nil}, {"leased", s.Leased != nil}, {"levels", s.Levels != nil}, {"refusals", s.Refusals != nil},
			{"rollout", s.Rollout != nil}, {"shadow", s.Shadow != nil}, {"synced", s.Synced != nil},
		} {
			if part.is {
				got = append(got, part.name)
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A program may give levels to policies that the file does not have.
func TestLevelsOfOtherPolicies(t *testing.T) {
	p := &quota.Policy{Name: "other", Limits: []quota.Limit{{Quota: 5, Window: time.Hour, Aligned: true}}}
	const shard, roots = "backend: redis\nredis: {shards: [{name: a, primary: '127.0.0.1:1'}]}\n", "roots: ['127.0.0.1:1']\n"
	for _, test := range []struct {
		text, leased, synced string // a part of the error about each level, or ""
	}{
		{shard, "", ""},
		{"backend: memory\n", "counts live in memory", "there are no shards"},
		{"backend: memory\n" + roots, "counts live in memory", ""},
		{"backend: memcached\nmemcached: {servers: ['127.0.0.1:1']}\n", "", "there are no shards"},
	} {
		c, err := Parse("weir.yaml", []byte(test.text), &Options{Levels: true})
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.open(true)
		if err != nil {
			t.Fatal(err)
		}
		for _, level := range []consistency.Level{consistency.Leased, consistency.Synced} {
			want := test.leased
			if level == consistency.Synced {
				want = test.synced
			}
			err := c.Supports(p, level)
			if want == "" && err != nil || want != "" && (!errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s%v: %v, want %s", test.text, level, err, want)
			}
			if want == "" { // then the level can be set
				if err := s.Levels.Set(p, level); err != nil {
					t.Error(err)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
