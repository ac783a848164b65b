package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/test/chaos/internal/history"
)

func TestMain(m *testing.M) {
	runAsWorker()
	goleak.VerifyTestMain(m)
}

var lasts = flag.Duration("lasts", 8*time.Second, "how long the run of the test is")

// A short run. It differs from `make chaos` in its length and number of clients; a loaded
// machine may take longer to recover.
func TestChaos(t *testing.T) {
	figure := filepath.Join(t.TempDir(), "chaos.svg")
	var out bytes.Buffer
	broken, err := chaos(t.Context(), []string{"-seed", fmt.Sprint(testseed.Of(t)), "-for", lasts.String(), "-clients", "3", "-recovery", "10s", "-plot", figure}, &out, io.Discard)
	t.Logf("%s", &out)
	if err != nil {
		t.Fatal(err)
	}
	if broken {
		t.Error("an invariant is broken; the report names the seed, and WEIR_SEED sets it")
	}
	if !strings.Contains(out.String(), "SIG") && !strings.Contains(out.String(), "process") {
		t.Error("nothing was done to the stack")
	}
	svg, err := os.ReadFile(figure)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); err == nil; {
		_, err = d.Token()
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// goodRun returns a run with a good history, which tests then spoil.
func goodRun() *run {
	r := &run{began: 1e9, beganWall: 1_900_000_000_000, ended: 11e9, used: map[int]int64{windowKeys: 2}}
	for i := range int64(quota) {
		r.decisions = append(r.decisions, &decision{shard: "a", call: 2e9 + i, returned: true, answer: answer{
			At: 2e9 + i + 1, Took: 1, Fate: history.Answered, Allowed: true, Used: i + 1, Reset: 1_900_000_002_000, Decided: 1_900_000_001_000,
		}})
	}
	for i := range int64(2) {
		r.decisions = append(r.decisions, &decision{shard: "b", key: windowKeys, call: 5e9 + i, returned: true, answer: answer{
			At: 5e9 + i + 1, Took: 1, Fate: history.Answered, Allowed: true, Used: i + 1, Reset: 1_900_000_900_000, Decided: 1_900_000_004_000,
		}})
	}
	r.faults = []*fault{{text: "a fault", from: 3e9, to: 4e9, processes: []int{0}, shards: []string{"b"}}}
	return r
}

// The judge detects violations of each invariant.
func TestJudge(t *testing.T) {
	if v := goodRun().judge(2 * time.Second); len(v.broken) > 0 {
		t.Fatalf("nothing is wrong: %v", v.broken)
	}
	more := func(r *run, used int64) {
		d := *r.decisions[0]
		d.call, d.At, d.Used = d.call+100, d.At+100, used
		r.decisions = append(r.decisions, &d)
	}
	for _, test := range []struct {
		name  string
		spoil func(r *run)
		want  string // "" if it is allowed
	}{
		{"one more than the quota", func(r *run) { more(r, quota) }, "were admitted"},
		{"the same, after a restart", func(r *run) {
			more(r, 1)
			r.faults = append(r.faults, &fault{from: 2e9, to: 2e9 + 1, lost: "a", everything: true})
		}, ""},
		{"the same, after a restart of the other shard", func(r *run) {
			more(r, 1)
			r.faults = append(r.faults, &fault{from: 2e9, to: 2e9 + 1, lost: "b", everything: true})
		}, "were admitted"},
		{"the same, after a takeover", func(r *run) {
			more(r, 5)
			r.faults = append(r.faults, &fault{from: 2e9 + 50, to: 2e9 + 60, lost: "a"})
		}, ""},
		{"the same, long after a takeover", func(r *run) {
			more(r, 5)
			r.faults = append(r.faults, &fault{from: 8e8, to: 9e8, lost: "a"})
		}, "were admitted"},
		{"one number twice", func(r *run) { r.decisions[3].Used = 3 }, "two takes"},
		{"counted too little", func(r *run) { r.used[windowKeys] = 1 }, "units are counted"},
		{"counted twice", func(r *run) { r.used[windowKeys] = 3 }, "units are counted"},
		{"counted once, of one that is unknown", func(r *run) {
			r.used[windowKeys] = 3
			r.decisions = append(r.decisions, &decision{shard: "b", key: windowKeys, call: 5e9})
		}, ""},
		{"late", func(r *run) { r.decisions[0].Took = deadline + lateness + 1 }, "its deadline was"},
		{"late, on a machine that stalled", func(r *run) { r.decisions[0].Took, r.decisions[0].Stalled = time.Second, time.Second }, ""},
		{"a refusal with room", func(r *run) { r.decisions[0].Allowed = false }, "no sense"},
		{"a window that is over", func(r *run) { r.decisions[0].Decided = r.decisions[0].Reset }, "no sense"},
		{"a wrong error", func(r *run) { r.decisions[0].Fate = history.Wrong }, "neither"},
		{"no recovery", func(r *run) { r.faults[0].processes = []int{0, 1} }, "got no decision"},
		{"a slow recovery", func(r *run) { r.faults[0].to = 2.5e9 }, "it took"},
		{"the same, on a machine that stalled", func(r *run) {
			r.faults[0].to = 2.5e9
			r.decisions = append(r.decisions, &decision{shard: "a", key: 1, call: 2.6e9, returned: true, answer: answer{
				At: 4.9e9, Took: 2.3e9, Stalled: 2.3e9, Fate: history.Unsent,
			}})
		}, ""},
	} {
		r := goodRun()
		test.spoil(r)
		broken := strings.Join(r.judge(2*time.Second).broken, "; ")
		if test.want == "" && broken != "" || !strings.Contains(broken, test.want) {
			t.Errorf("%s: %q, want %q", test.name, broken, test.want)
		}
	}
}
