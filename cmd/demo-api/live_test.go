package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The file of live policies is in force soon after it is written, without a signal, and counts
// continue. A file with a mistake changes nothing.
func TestLivePolicies(t *testing.T) {
	t.Parallel() // it waits most of the time
	file := filepath.Join(t.TempDir(), "live.json")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(`{"policies": [{"name": "core", "limits": ["50 per 1h"]}]}`)
	d := startDemo(t, "live_policies: "+file+"\n")
	get := func() *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+"/repos/acme/rockets", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer demo-alice")
		res, err := d.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res
	}
	await := func(what string, is func(*http.Response) bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !is(get()); time.Sleep(200 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("waited 20 s for %s", what)
			}
		}
	}
	if res := get(); res.Header.Get("X-Ratelimit-Limit") != "50" || res.Header.Get("X-Ratelimit-Used") != "1" {
		t.Errorf("%v", res.Header)
	}
	put(`{"policies": [{"name": "core", "limits": ["58 per 1h"]}]}`)
	await("another quota", func(res *http.Response) bool {
		if res.Header.Get("X-Ratelimit-Used") == "1" {
			t.Fatal("a new quota is a fresh window")
		}
		return res.Header.Get("X-Ratelimit-Limit") == "58"
	})
	put(`{"policies": [`)
	d.stderr.find(t, `(live.json)`, d.ended)
	if res := get(); res.Header.Get("X-Ratelimit-Limit") != "58" {
		t.Errorf("after a file that is wrong: %v", res.Header)
	}
	put(`{"overrides": [{"policy": "core", "key": "subject:alice", "blocked": true, "reason": "a test"}]}`)
	await("a block", func(res *http.Response) bool {
		return res.StatusCode == 429 && res.Header.Get("X-Ratelimit-Limit") == ""
	})
	put(`{}`)
	await("the end of a block", func(res *http.Response) bool {
		return res.StatusCode == 200 && res.Header.Get("X-Ratelimit-Limit") == "60" || res.Header.Get("X-Ratelimit-Remaining") == "0"
	})
}

// A misspelled policy is warned of with the first request, though core has plans.
func TestMisspelledLivePolicies(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "live.json")
	text := `{"policies": [{"name": "cor", "limits": ["50 per 1h"]}], "overrides": [{"policy": "cor", "key": "subject:alice", "blocked": true}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDemo(t, "live_policies: "+file+"\n")
	res, err := d.client.Get(d.url + "/repos/acme/rockets")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	d.stderr.find(t, `(policy=cor hint="did you mean core\?")`, d.ended)
}

func TestLivePoliciesAreChecked(t *testing.T) {
	dir := writeFiles(t, map[string]string{"demo.yaml": "live_policies: live.json\n", "live.json": `{"policies": [{"name": "core"}]}`})
	var out strings.Builder
	err := run(t.Context(), []string{"-check", "-config", filepath.Join(dir, "demo.yaml")}, &out, &out)
	if err == nil || !strings.Contains(err.Error(), `policy "core" has 0 limits`) {
		t.Errorf("%v; want what is wrong with the file", err)
	}
}
