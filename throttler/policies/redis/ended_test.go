package redispolicies_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

// beforeScripts calls do before the first script of a client.
type beforeScripts struct{ do func() }

func (h *beforeScripts) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *beforeScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h *beforeScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if do := h.do; do != nil && strings.HasPrefix(cmd.Name(), "eval") {
			h.do = nil
			do()
		}
		return next(ctx, cmd)
	}
}

func TestRemoveEnded(t *testing.T) {
	server := testserver.Redis(t)
	store, _, _ := open(t, server)
	now := time.Now()
	write := func(all ...policies.Override) {
		t.Helper()
		if _, err := store.Write(t.Context(), redispolicies.Change{Override: all}); err != nil {
			t.Fatal(err)
		}
	}
	block := func(key string, until time.Time) policies.Override {
		return policies.Override{Policy: "core", Key: key, Blocked: true, Until: until}
	}
	const ended = redispolicies.MaxChange + 500
	for first := 0; first < ended; first += redispolicies.MaxChange {
		var all []policies.Override
		for i := first; i < min(first+redispolicies.MaxChange, ended); i++ {
			all = append(all, block(fmt.Sprint("ended-", i), now.Add(-time.Hour)))
		}
		write(all...)
	}
	write(block("for ever", time.Time{}), block("for an hour", now.Add(time.Hour)))
	if found, err := store.RemoveEnded(t.Context(), now); err != nil || found != ended {
		t.Errorf("found %d, %v; want %d", found, err, ended)
	}

	write(block("renewed", now.Add(-time.Hour)))
	other, client, _ := open(t, server)
	client.AddHook(&beforeScripts{func() { write(block("renewed", now.Add(time.Hour))) }})
	if found, err := other.RemoveEnded(t.Context(), now); err != nil || found != 1 {
		t.Errorf("found %d, %v; want the one that was renewed meanwhile", found, err)
	}
	left := map[string]bool{}
	if err := store.Overrides(t.Context(), func(o policies.Override) bool { left[o.Key] = true; return true }); err != nil {
		t.Fatal(err)
	}
	if len(left) != 3 || !left["for ever"] || !left["for an hour"] || !left["renewed"] {
		t.Errorf("left are %v", left)
	}
	f := follow(t, store)
	_, version, err := store.Read(t.Context())
	if s := f.status(); err != nil || s.Version != version || s.Wrong != "" {
		t.Errorf("a process has %+v; the store has version %d, %v", s, version, err)
	}
	if found, err := store.RemoveEnded(t.Context(), now); err != nil || found != 0 {
		t.Errorf("again: found %d, %v", found, err)
	}
	if _, after, err := store.Read(t.Context()); err != nil || after != version {
		t.Errorf("version %d after %d, though nothing changed: %v", after, version, err)
	}
}
