package oracle

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/cmd/throttlerd/internal/rls"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
)

const (
	recordedCompatible = "testdata/compatible.txt"
	recordedWorlds     = 16
	perRecordedWorld   = 50
)

// isRecorded reports whether the counter of a name in statsd is recorded: the request that asks
// whether the program is ready has others.
func isRecorded(name string) bool {
	return strings.HasPrefix(name, "ratelimit.service.rate_limit.") && !strings.HasPrefix(name, "ratelimit.service.rate_limit.ready.")
}

// TestRecordedCompatible repeats the requests about random files whose answers from
// envoyproxy/ratelimit are recorded: with WEIR_COMPATIBLE, all answers and counters are the same.
func TestRecordedCompatible(t *testing.T) {
	text, err := os.ReadFile(recordedCompatible)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(strings.TrimSpace(string(text)), "\n\n")
	if len(parts) != recordedWorlds {
		t.Fatalf("%s has %d worlds, want %d", recordedCompatible, len(parts), recordedWorlds)
	}
	for seed, part := range parts {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(uint64(seed), true)
			read, err := settings.Read(append([]string{"WEIR_COMPATIBLE=true", "BACKEND_TYPE=memory"}, w.env...))
			if err != nil {
				t.Fatal(err)
			}
			now := clock.NewManual(time.Unix(0, 0))
			s := rls.New(memorybackend.NewDefault(), now, &rls.Options{Answers: read.Answers, Metrics: rls.NewMetrics(prometheus.NewRegistry(), true)})
			s.Load(w.set())
			lines := strings.Split(part, "\n")
			for i, line := range lines[:perRecordedWorld] {
				second, want, _ := strings.Cut(line, " ")
				var unix int64
				if _, err := fmt.Sscan(second, &unix); err != nil {
					t.Fatal(err)
				}
				now.Set(time.Unix(unix, 0))
				req := w.next()
				if got := whole(t.Context(), s, req); got != want {
					t.Fatalf("request %d, %v:\n%s\nenvoyproxy/ratelimit:\n%s\n%v\n%s", i, req, got, want, w.env, w.file())
				}
			}
			var numbers []string
			s.Stats(func(name string, value uint64) {
				if isRecorded(name) {
					numbers = append(numbers, fmt.Sprintf("%s: %d", name, value))
				}
			})
			slices.Sort(numbers)
			if want := slices.Sorted(slices.Values(lines[perRecordedWorld:])); !slices.Equal(numbers, want) {
				t.Errorf("counters\n%s\nenvoyproxy/ratelimit:\n%s\n%v\n%s", strings.Join(numbers, "\n"), strings.Join(want, "\n"), w.env, w.file())
			}
		})
	}
}
