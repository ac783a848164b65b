//go:build foreign

package clients_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// These tests wait for a real window of two seconds, because the clients have their own
// clocks. See README.md.

func TestOctokit(t *testing.T) {
	install(t, "octokit")
	run(t, "1 2 3 1 | 1 primary", "node", "octokit/check.mjs")
}

func TestURLLib3(t *testing.T) {
	run(t, "1 2 3 1 | waited", "python3", "urllib3/check.py")
}

// The clients of OpenAI's and Anthropic's APIs repeat a refused request after Retry-After, and
// read the headers.
func TestModels(t *testing.T) {
	install(t, "models")
	for script, test := range map[string]struct {
		dialect middleware.Dialect
		want    string
	}{
		"models/openai.mjs":    {middleware.OpenAI{}, "1 0 2s 90000 89999 | waited"},
		"models/anthropic.mjs": {middleware.Anthropic{}, "1 0 90000 89999 90000 | resets | waited"},
	} {
		requests := &throttler.Policy{Name: "requests", Limits: []throttler.Limit{{Quota: 1, Window: 2 * time.Second}}}
		tokens := &throttler.Policy{Name: "tokens", Limits: []throttler.Limit{{Quota: 90_000, Window: 2 * time.Second}}, Unit: quota.OutputTokens}
		both := middleware.All(middleware.Limit(requests, middleware.Everyone()), middleware.Limit(tokens, middleware.Everyone()))
		limit, err := middleware.New(throttler.New(memorybackend.NewDefault(), nil), both, &middleware.Options{Dialect: test.dialect})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"object":"list","data":[],"has_more":false}`)
		})))
		t.Cleanup(server.Close)
		expectOutput(t, test.want, "node", script, server.URL)
	}
}

// install installs the packages in a folder.
func install(t *testing.T, folder string) {
	t.Helper()
	npm := exec.CommandContext(t.Context(), "npm", "install", "--silent", "--no-audit", "--no-fund")
	npm.Dir = folder
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
}

func run(t *testing.T, want, program, script string) {
	t.Helper()
	a := newAPI(t, clock.System{}, throttler.Limit{Quota: 3, Window: 2 * time.Second}, nil, repository)
	expectOutput(t, want, program, script, a.URL)
}

func expectOutput(t *testing.T, want, program, script, url string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, script, url).CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("%s %s: %q, error %v; want %q", program, script, got, err, want)
	}
}
