package config

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// Reread logs the changes that it ignores, and does not change the program's own keys.
func TestReread(t *testing.T) {
	file := writeFiles(t, map[string]string{"weir.yaml": "listen: 127.0.0.1:1\npolicies: {core: {limits: 5 per 1s, consistency: exact}}\n"}) + "/weir.yaml"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log logged
	own := new(program)
	s, err := Open(file, &Options{Policies: programPolicies, Program: own, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Reread(); err != nil || !strings.Contains(log.String(), "nothing has changed that can") || strings.Contains(log.String(), "ignored") {
		t.Errorf("nothing has changed: error %v, log %s", err, &log)
	}
	write("listen: 127.0.0.1:2\ndeadline: 1s\npolicies: {core: {limits: 6 per 1s, consistency: exact}}\n")
	if err := s.Reread(); err != nil || !strings.Contains(log.String(), `ignored="policies, deadline"`) {
		t.Errorf("error %v, log %s; want that policies and deadline are ignored", err, &log)
	}
	if own.Listen != "127.0.0.1:1" {
		t.Errorf("the program's key is %q now", own.Listen)
	}
	write("listen: here\npolicies: {cor: 1 per 1s}\n")
	if err := s.Reread(); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("a wrong file: got %v, want both mistakes", err)
	}
}

// A table of policies that watches the file puts each version of it in force.
func TestParsePolicies(t *testing.T) {
	dir := writeFiles(t, map[string]string{"weir.yaml": "listen: 127.0.0.1:1\npolicies: {core: 5 per 1s}\n"})
	file, own := dir+"/weir.yaml", new(program)
	s, err := Open(file, &Options{Policies: programPolicies, Program: own})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	table := new(policies.Table)
	watched, err := policies.WatchFile(table.Source("file"), file, &policies.FileOptions{Parse: s.Config.ParsePolicies, Every: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Close()
	quotaIs := func(name string, want int64) {
		t.Helper()
		if p := table.View().Policy(name); p == nil || p.Limits[0].Quota != want {
			t.Errorf("%s is %+v, want a quota of %d", name, p, want)
		}
	}
	quotaIs("core", 5)
	quotaIs("search", 30) // the program's
	for _, version := range []struct {
		text string
		want int64
	}{{"listen: 127.0.0.1:2\npolicies: {core: 66 per 1s}\n", 66}, {"policies: {cor: 1 per 1s}\n", 66}, {"policies: {core: 777 per 1s}\n", 777}} {
		if err := os.WriteFile(file, []byte(version.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := watched.Refresh(); (err == nil) != strings.Contains(version.text, "core") || err != nil && !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%s: error %v", version.text, err)
		}
		quotaIs("core", version.want)
	}
	if own.Listen != "127.0.0.1:1" {
		t.Errorf("the program's key is %q now", own.Listen)
	}
}

// A policy of the file may have a parent, if there is a table that charges it.
func TestParentsInAFile(t *testing.T) {
	const teams = "policies:\n  core: 5 per 1s\n  teams: 9 per 1s\n"
	for text, want := range map[string]string{
		teams + "  buckets: {limits: 7 per 1s, parent: teams, parent_key: acme}\n":         "",
		teams + "  buckets: {limits: 7 per 1s, parent: team}\n":                            `weir.yaml:4: policies.buckets.parent is "team", which is no policy; did you mean teams?`,
		teams + "  buckets: {limits: 7 per 1s, parent_key: acme}\n":                        `policy "buckets": it has a parent key and no parent`,
		teams + "  buckets: {limits: 7 per 1s, parent: buckets}\n":                         `policy "buckets": it is its own parent`,
		teams + "  a: {limits: 7 per 1s, parent: b}\n  b: {limits: 7 per 1s, parent: a}\n": `the parents of policy "a" are a cycle: a, b, a`,
		teams + "  buckets: {limits: 7 per 1s, parent: teams, unit: tokens}\n":             `policy "buckets" counts tokens, and its parent "teams" counts requests`,
	} {
		c, err := Parse("weir.yaml", []byte(text), &Options{Policies: programPolicies, Table: new(policies.Table)})
		if want != "" {
			if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", text, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if p := c.Policies["buckets"]; p.Parent != "teams" || p.ParentKey != "acme" {
			t.Errorf("%s: %+v", text, p)
		}
	}
	const text = teams + "  buckets: {limits: 7 per 1s, parent: teams}\n"
	if _, err := Parse("weir.yaml", []byte(text), &Options{Policies: programPolicies}); err == nil || !strings.Contains(err.Error(), "the program has no table of policies") {
		t.Errorf("without a table: %v", err)
	}
}

// A file that no longer has shares changes nothing while they are served.
func TestRereadWithoutShares(t *testing.T) {
	self := testserver.FreeAddr(t)
	dir := writeFiles(t, map[string]string{"key": sharesKey})
	file := filepath.Join(dir, "weir.yaml")
	text := `backend: shares
shares: {self: "` + self + `", members: ["` + self + `"], key_file: key}
policies: {core: {limits: [{quota: 90, window: 1h, algorithm: token-bucket}]}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log logged
	s, err := Open(file, &Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.WriteFile(file, []byte("policies: {core: {limits: [{quota: 90, window: 1h, algorithm: token-bucket}]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Reread(); err != nil || !strings.Contains(log.String(), `ignored="backend, shares"`) {
		t.Errorf("error %v, log %s; want that backend and shares are ignored", err, &log)
	}
}

// Reread reports keys with other values, and not the contents of files, which are read again
// while they are in use.
func TestRereadOfFilesItNames(t *testing.T) {
	dir := writeFiles(t, map[string]string{"flags.yaml": "{}", "password": "s3cret\n", "other": "s3cret\n"})
	const text = `
backend: memory
flags: flags.yaml
redis:
  shards:
    - {name: a, primary: 127.0.0.1:1, password_file: password}
    - {name: b, primary: 127.0.0.1:1, tls: true}
policies: {core: {limits: 5 per 1s, consistency: exact}, search: 5 per 1s}
`
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("weir.yaml", text)
	var log logged
	c, err := Read(filepath.Join(dir, "weir.yaml"), &Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.open(true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, step := range []struct{ file, text, ignored string }{
		{"weir.yaml", text, ""},
		{"weir.yaml", "# a comment" + text, ""},
		{"weir.yaml", strings.Replace(text, "consistency: exact", "consistency: leased, was: exact", 1), ""},
		{"flags.yaml", "redis: 5", ""},
		{"password", "new\n", ""},
		{"weir.yaml", strings.Replace(text, "tls: true", "tls: false", 1), "redis"},
		{"weir.yaml", strings.Replace(text, "password_file: password", "password_file: other", 1), "redis"},
		{"weir.yaml", strings.Replace(text, "search: 5", "search: 6", 1), "policies"},
		{"weir.yaml", strings.Replace(text, "flags.yaml", "other", 1), "flags"},
	} {
		write(step.file, step.text)
		log.Reset()
		if err := s.Reread(); err != nil {
			t.Fatal(err)
		}
		_, ignored, _ := strings.Cut(log.String(), "ignored=")
		if ignored, _, _ = strings.Cut(ignored, "\n"); ignored != step.ignored {
			t.Errorf("ignored is %q, want %q, after a change of %s to\n%s", ignored, step.ignored, step.file, step.text)
		}
		write("weir.yaml", text)
	}
}

// logged is the text of a log, to which a stack writes in the background, too.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}
