package config

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/memprovider"

	"github.com/weir-go/weir/guard/rollout"
)

// flagged returns a configuration with a file of flags that has that text.
func flagged(t *testing.T, text string, log *slog.Logger) *Config {
	t.Helper()
	dir := writeFiles(t, map[string]string{
		"flags.yaml": text,
		"weir.yaml":  "backend: memcached\nmemcached: {servers: [127.0.0.1:1]}\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\nflags: flags.yaml\n",
	})
	c, err := Read(filepath.Join(dir, "weir.yaml"), &Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// backendOf returns the backend of a client.
func (f *flags) backendOf(client string) string {
	d := f.StringEvaluation(context.Background(), rollout.DefaultFlag, "unset", openfeature.FlattenedContext{openfeature.TargetingKey: rollout.TargetingKey(client)})
	return d.Value
}

// A percentage is of the same clients in every process, also if its backend is the one of the
// configuration, and a larger one includes the clients of a smaller one.
func TestPercentagesOfClients(t *testing.T) {
	const clients = 10_000
	on := func(text, backend string) map[string]bool {
		c := flagged(t, text, nil)
		c.Backend = backend
		f, all := newFlags(c), map[string]bool{}
		for i := range clients {
			if client := fmt.Sprint("client", i); f.backendOf(client) == "redis" {
				all[client] = true
			}
		}
		return all
	}
	before := map[string]bool{}
	for _, percent := range []float64{0, 0.5, 1, 10, 30, 50, 100} {
		text := fmt.Sprintf("redis: %v", percent)
		now := on(text, "memcached")
		if n := float64(len(now)); n < clients*percent/100-200 || n > clients*percent/100+200 || percent == 0 && n > 0 || percent == 100 && n < clients {
			t.Errorf("at %v percent, %v of %d are on redis", percent, n, clients)
		}
		for client := range before {
			if !now[client] {
				t.Fatalf("at %v percent %s is not on redis any more", percent, client)
			}
		}
		before = now
	}
	if n := len(on("redis: 100", "redis")); n != clients {
		t.Errorf("redis is the default: it has %d of %d", n, clients)
	}
	both := on(`{"memcached": 70, "redis": 30}`, "redis")
	for client := range on(`{"redis": 30, "memcached": 70}`, "memcached") {
		if !both[client] {
			t.Fatalf("%s moves when the default changes", client)
		}
	}
}

func TestFlagsSayWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":                               " the file is empty; it must have a percentage for a backend, such as redis: 5",
		"key":                            `1: the file is "key"; it must be a mapping, and each value a percentage from 0 to 100, such as 5 or 0.5`,
		"reids: 5":                       "1: reids is no backend of the configuration; it has memcached, redis",
		"redis: 5\nredis: 6":             "2: redis is set twice, first in line 1",
		"redis: 101":                     `1: redis is "101"; it must be a percentage from 0 to 100, such as 5 or 0.5`,
		"redis: -1":                      `1: redis is "-1"; it must be a percentage from 0 to 100, such as 5 or 0.5`,
		"redis: .inf":                    `1: redis is ".inf"; it must be a percentage`,
		"redis: 1e1":                     `1: redis is "1e1"; it must be a percentage`,
		"redis: [5]":                     "1: redis is a list; it must be",
		"redis: 60\nmemcached: 50":       "1: the percentages add up to 110; they must add up to 100, or less",
		"memcached: 60\nredis: 30":       "1: memcached serves all others, and the percentages add up to 90; leave it out",
		`{"flags": {"a": {"state": 1}}}`: "1: flags is a mapping; it must be a percentage from 0 to 100, such as 5 or 0.5",
	} {
		c := flagged(t, text, nil)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), "flags.yaml:"+want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// The last good state holds while the file is damaged or gone. A problem is logged once, when it
// is seen twice.
func TestLastGoodFlagsHold(t *testing.T) {
	log := new(lines)
	c := flagged(t, "redis: 200", slog.New(slog.NewTextHandler(log, nil)))
	f := newFlags(c)
	file := c.keys.Flags.name
	step := func(text, want, said string) {
		t.Helper()
		log.text.Reset()
		if text == "" {
			_ = os.Remove(file)
		} else if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			f.refresh()
		}
		if got := f.backendOf("alice"); got != want || strings.Count(log.text.String(), "msg=") != 1 || !strings.Contains(log.text.String(), said) {
			t.Errorf("%q: alice is on %s, want %s; log %q, want one line with %q", text, got, want, log.text.String(), said)
		}
	}
	if got := f.backendOf("alice"); got != "unset" || !strings.Contains(log.text.String(), "until it is right, one backend serves all") {
		t.Errorf("a file that is wrong at the start: alice is on %s; log %q", got, log.text.String())
	}
	step("redis: 100", "redis", "read the flags")
	step("redi", "redis", "its last good state stays in use")
	step("", "redis", "no such file")
	step("memcached: 100", "memcached", "read the flags")
}

// A program may bring its own provider in place of a file.
func TestFlagsOfTheProgram(t *testing.T) {
	const stores = "backend: memory\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\n"
	flag := memprovider.InMemoryFlag{Key: rollout.DefaultFlag, State: memprovider.Enabled, DefaultVariant: "on", Variants: map[string]any{"on": "redis"}}
	provider := memprovider.NewInMemoryProvider(map[string]memprovider.InMemoryFlag{rollout.DefaultFlag: flag})
	c, err := Parse("weir.yaml", []byte(stores), &Options{Flags: &provider, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if c.Places() != "memory, unless the program's flag says redis" || !c.Remote() {
		t.Errorf("counts are in %s", c.Places())
	}
	s, err := c.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if name := s.Rollout.BackendFor(ctx, "alice"); name != "redis" {
		t.Errorf("alice is on %s", name)
	}
	dir := writeFiles(t, map[string]string{"flags.yaml": "redis: 5", "weir.yaml": stores + "flags: flags.yaml\n"})
	if _, err := Read(filepath.Join(dir, "weir.yaml"), &Options{Flags: &provider}); err == nil || !strings.Contains(err.Error(), "weir.yaml:3: flags is set, and the program has flags of its own") {
		t.Errorf("%v; want a problem with the file", err)
	}
	if _, err := Parse("weir.yaml", []byte("backend: memory\n"), &Options{Flags: &provider}); err != nil {
		t.Error(err)
	}
}
