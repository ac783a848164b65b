package rollout_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/guard/rollout/flagfile"
)

// TestShares checks that a flag selects its share of 10,000 clients for a backend, the same
// ones in every process, and that a larger share includes the clients of a smaller one.
func TestShares(t *testing.T) {
	const clients = 10_000
	on := func(percent int) map[string]bool {
		name := filepath.Join(t.TempDir(), "flags.json")
		text := fmt.Sprintf(`{"flags": {"throttler-backend": {"state": "ENABLED", "variants": {"redis": "redis", "memcached": "memcached"},
			"defaultVariant": "memcached", "targeting": {"fractional": [["redis", %d], ["memcached", %d]]}}}}`, percent, 100-percent)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		flags, err := flagfile.New(name, &flagfile.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		backends := map[string]handoff.Store{"redis": memorybackend.NewDefault(), "memcached": memorybackend.NewDefault()}
		b := newRollout(t, backends, "memcached", clientOf(t, flags), nil)
		chosen := make(map[string]bool)
		for i := range clients {
			if key := fmt.Sprint("client", i); wanted(t, b, key) == "redis" {
				chosen[key] = true
			}
		}
		return chosen
	}
	thirty, again, fifty := on(30), on(30), on(50)
	if n := len(thirty); n < clients*28/100 || n > clients*32/100 {
		t.Errorf("at 30 percent %d of %d are on redis", n, clients)
	}
	if n := len(fifty); n < clients*48/100 || n > clients*52/100 {
		t.Errorf("at 50 percent %d of %d are on redis", n, clients)
	}
	for key := range thirty {
		if !again[key] || !fifty[key] {
			t.Errorf("%s is on redis at 30 percent; in another process %v, at 50 percent %v", key, again[key], fifty[key])
		}
	}
	if len(again) != len(thirty) {
		t.Errorf("one process has %d on redis, another %d", len(thirty), len(again))
	}
	t.Logf("at 30 percent %d of %d, at 50 percent %d", len(thirty), clients, len(fifty))
}

// wanted asks again if the evaluation timed out, on a busy machine, and the default
// was used.
func wanted(t *testing.T, b *rollout.Backend, key string) string {
	for {
		hung := b.Stats().Defaulted["hangs"]
		name := b.BackendFor(t.Context(), key)
		if b.Stats().Defaulted["hangs"] == hung {
			return name
		}
	}
}
