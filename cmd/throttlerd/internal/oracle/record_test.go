//go:build service && record

package oracle

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// TestRecord sends TestRecorded's requests to envoyproxy/ratelimit, and records the answers.
func TestRecord(t *testing.T) {
	theirs, _ := build(t)
	s, g := start(t, theirs), newGenerator("r", seed)
	var b strings.Builder
	for range requests {
		b.WriteString(answer(t.Context(), s, g.next()) + "\n")
	}
	if err := os.WriteFile(recorded, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRecordCompatible records the answers and the counters that TestRecordedCompatible replays.
// RATELIMIT_SOURCE must be a version of July 2026 or later.
func TestRecordCompatible(t *testing.T) {
	if source == "" {
		t.Fatal("RATELIMIT_SOURCE is not set; it must be a clone of envoyproxy/ratelimit")
	}
	theirs, _ := buildSource(t)
	redis := testserver.Redis(t).Addr
	var b strings.Builder
	for seed := range recordedWorlds {
		r := &round{seed: 2*seed + 1, world: newWorld(uint64(seed), true)} // odd: with statsd
		s := r.start(t, theirs, redis)
		for range perRecordedWorld {
			if f := time.Now().Nanosecond(); f > 900e6 {
				time.Sleep(time.Duration(1e9 - f))
			}
			second := time.Now().Unix()
			got := whole(t.Context(), s, r.next())
			if time.Now().Unix() != second {
				t.Fatal("an answer took too long; run it again on a machine that does nothing else")
			}
			fmt.Fprintln(&b, second, got)
		}
		numbers := s.numbers(t, r)
		for _, name := range slices.Sorted(maps.Keys(numbers)) {
			if isRecorded(name) {
				fmt.Fprintf(&b, "%s: %.0f\n", name, numbers[name])
			}
		}
		b.WriteString("\n")
	}
	if err := os.WriteFile(recordedCompatible, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
