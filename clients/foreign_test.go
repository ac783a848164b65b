//go:build foreign

package clients_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

// These wait for a real window of two seconds: the clients have clocks of their
// own. See README.md.

func TestOctokit(t *testing.T) {
	install := exec.CommandContext(t.Context(), "npm", "install", "--silent", "--no-audit", "--no-fund")
	install.Dir = "octokit"
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	run(t, "1 2 3 1 | 1 primary", "node", "octokit/check.mjs")
}

func TestURLLib3(t *testing.T) {
	run(t, "1 2 3 1 | waited", "python3", "urllib3/check.py")
}

func run(t *testing.T, want, program, script string) {
	t.Helper()
	a := newAPI(t, clock.System{}, throttler.Limit{Quota: 3, Window: 2 * time.Second}, nil, repository)
	out, err := exec.CommandContext(t.Context(), program, script, a.URL).CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("%s %s: %q, error %v; want %q", program, script, got, err, want)
	}
}
