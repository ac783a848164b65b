package oracle

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	configured "github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/cmd/throttlerd/internal/rls"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/config/envoyfile"
)

const (
	recorded = "testdata/answers.txt"
	requests = 2000
	seed     = 7
)

// counting returns a throttlerd that counts refused requests, as envoyproxy/ratelimit does.
func counting(t *testing.T) *rls.Server {
	t.Helper()
	f, err := envoyfile.Parse("a.yaml", []byte(descriptors), nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := configured.New([]*envoyfile.File{f}, false, false)
	if err != nil {
		t.Fatal(err)
	}
	now := clock.NewManual(time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC))
	s := rls.New(memorybackend.NewDefault(), now, &rls.Options{Answers: settings.Answers{CountRefused: true, NearLimitRatio: 0.8}, Metrics: rls.NewMetrics(prometheus.NewRegistry(), false)})
	s.Load(set)
	return s
}

// TestRecorded repeats the requests whose answers from envoyproxy/ratelimit are recorded.
func TestRecorded(t *testing.T) {
	text, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	theirs := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(theirs) != requests {
		t.Fatalf("%s has %d answers, want %d", recorded, len(theirs), requests)
	}
	s, g := counting(t), newGenerator("r", seed)
	why := make(map[string]int)
	for i, want := range theirs {
		req := g.next()
		got := answer(t.Context(), s, req)
		if got == want {
			continue
		}
		reason := explain(false, req, want, got)
		if why[reason]++; reason == "" && why[""] < 10 {
			t.Errorf("request %d, %v: %s\nenvoyproxy/ratelimit: %s", i, req, got, want)
		}
	}
	t.Logf("%d answers, differences %v", requests, why)
	if why["quota_mode"] == 0 {
		t.Error("no request came near what is known to differ")
	}
}
