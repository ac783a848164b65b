package main

import (
	"context"
	"fmt"
	"time"

	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// oneShard returns a configuration that allows one request of core.
func oneShard(addr, more string) string {
	return fmt.Sprintf("backend: redis\nredis: {shards: [{name: a, primary: %s}]}\npolicies:\n  core: {limits: [{quota: 1, window: 1h}]}\n%s", addr, more)
}

// decisions returns the number of scripts that a server has run.
func decisions(t *testing.T, addr string) int64 {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	stats, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, m := range regexp.MustCompile(`(?m)^cmdstat_eval(?:sha)?:calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	return total
}

// TestRefusalsAreRememberedByDefault counts the calls to Redis while a refused client repeats
// its request.
func TestRefusalsAreRememberedByDefault(t *testing.T) {
	for name, test := range map[string]struct {
		config     string
		remembered bool
	}{
		"default":           {"", true},
		"except another":    {"refusal_cache: {except: [search]}\n", true},
		"except the policy": {"refusal_cache: {except: [core]}\n", false},
		"off":               {"refusal_cache: false\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			addr := testserver.Redis(t).Addr
			d := startDemo(t, oneShard(addr, test.config))
			if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "1/1 core" {
				t.Fatalf("got %v, want 200 1/1 core", r)
			}
			before, stats := decisions(t, addr), d.refusals()
			const requests = 50
			for range requests {
				r := d.get("/repos/acme/rockets")
				if r.status != http.StatusTooManyRequests || r.rates() != "1/1 core" || r.header.Get("X-RateLimit-Remaining") != "0" || r.header.Get("Retry-After") == "" {
					t.Fatalf("got %v, want 429 1/1 core", r)
				}
			}
			asked, now := decisions(t, addr)-before, d.refusals()
			if test.remembered && asked >= requests || !test.remembered && asked != requests {
				t.Errorf("Redis decided %d times about %d requests", asked, requests)
			}
			if got := now.Answered - stats.Answered; test.remembered && got != requests-asked || !test.remembered && got != 0 {
				t.Errorf("the page has %d requests answered, want %d", got, requests-asked)
			}
		})
	}
}

// refusals returns the page's Stats of the refusal cache.
func (d *demo) refusals() refusals.Stats {
	d.t.Helper()
	if s := d.stats().Refusals; s != nil {
		return *s
	}
	return refusals.Stats{}
}

func TestRefundsEndRefusals(t *testing.T) {
	text := oneShard(testserver.Redis(t).Addr, "")
	here, there := process(t, text), process(t, text)
	core := (&throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}).Charge("alice")
	take := func(process *throttler.Throttler) throttler.Decision {
		t.Helper()
		d, err := process.Take(context.Background(), core)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	refuse := func(process *throttler.Throttler) {
		t.Helper()
		for range 2 { // the second time from memory
			if take(process).Allowed {
				t.Fatal("allowed beyond the quota")
			}
		}
	}
	refund := func(process *throttler.Throttler, d throttler.Decision) {
		t.Helper()
		if _, err := process.Refund(context.Background(), d); err != nil {
			t.Fatal(err)
		}
	}

	charged := take(here)
	refuse(here)
	refund(here, charged)
	charged = take(here)
	if !charged.Allowed {
		t.Fatal("refused behind a refund through the same process")
	}

	refuse(there)
	refund(here, charged)
	refunded := time.Now()
	for {
		late := time.Since(refunded) >= refusals.DefaultMaxAge
		if take(there).Allowed {
			return
		}
		if late {
			t.Fatalf("refused more than %v behind a refund through another process", refusals.DefaultMaxAge)
		}
	}
}

// process returns a throttler on the backends of a demo with that configuration.
func process(t *testing.T, text string) *throttler.Throttler {
	t.Helper()
	_, c, err := parse("demo.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.Throttler
}
