package config_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/config"
	weirlog "github.com/weir-go/weir/observe/log"
)

// Open's observer is warned of what is allowed, but probably a mistake.
func TestOpenWarns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte("backend: memory\npolicies: {core: [10 per 10s, 600 per 600s]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	s, err := config.Open(file, &config.Options{Observer: weirlog.New(slog.New(slog.NewTextHandler(&text, nil)), nil)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(text.String(), "can never refuse next to limit 0") {
		t.Errorf("the log is %s", &text)
	}
}

func TestSettingsWithoutEffect(t *testing.T) {
	const redis = "backend: redis\nredis: {shards: [{name: a, primary: '127.0.0.1:1'}]}\n"
	shards := func(list string) string { return "backend: redis\nredis: {shards: [" + list + "]}\n" }
	for text, want := range map[string]string{
		redis + "processes: 3\n": "processes has no effect, because no on_failure is local",
		redis + "processes: 3\npolicies: {core: {limits: 1 per 1h, on_failure: local}}\n": "",
		redis + "open_for: 1m\n":                                                                                  "",
		redis + "open_for: 1m\non_failure: closed\n":                                                              "open_for has no effect, because no on_failure is open",
		shards("{name: a, primary: '127.0.0.1:1'}, {name: b, primary: '127.0.0.1:1'}"):                            `the primary of shard "b" is 127.0.0.1:1, as the primary of shard "a" is; each needs a server of its own`,
		shards("{name: a, primary: 'redis://127.0.0.1:1/1'}, {name: b, primary: '127.0.0.1:1'}"):                  "",
		shards("{name: a, primary: '127.0.0.1:1', replicas: ['127.0.0.1:2']}, {name: b, primary: '127.0.0.1:2'}"): `the primary of shard "b" is 127.0.0.1:2, as the replica of shard "a" is; each needs a server of its own`,
		shards("{name: a, primary: '127.0.0.1:1', username: bob}"):                                                `the user "bob" of shard "a" has no password, without which connections are the default user's; write password_file or password_env`,
	} {
		c, err := config.Parse("weir.yaml", []byte(text), nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := strings.Join(c.Warnings(), "\n"); got != want {
			t.Errorf("%s: %q; want %q", text, got, want)
		}
	}
	if _, err := config.Parse("weir.yaml", []byte("seed: 5\n"), nil); err == nil || !strings.Contains(err.Error(), "seed is set, but counts live in memory") {
		t.Errorf("seed in memory: %v", err)
	}
}
