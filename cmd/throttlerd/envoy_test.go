//go:build service

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// documented returns a documented file with its addresses replaced.
func documented(t *testing.T, name string, oldnew ...string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/envoy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(oldnew...).Replace(string(text))
}

// envoy runs Envoy with a configuration until the test ends.
func envoy(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	c := exec.Command("envoy", "-c", file, "--use-dynamic-base-id", "--concurrency", "2", "--log-level", "warning")
	c.Stdout, c.Stderr = &said, &said
	if err := testserver.Start(t, c); err != nil {
		t.Fatalf("envoy: %v; make test-service installs it", err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("envoy said:\n%s", &said)
		}
	})
}

// Envoy, throttlerd and two shards, as in docs/howto/running-throttlerd.md: limits hold, refused
// requests charge nothing, and without throttlerd Envoy serves.
func TestEnvoy(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the application") }))
	defer app.Close()
	a, b := testserver.Redis(t), testserver.Redis(t)
	config := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(config, []byte(documented(t, "weir.yaml", "127.0.0.1:7001", a.Addr, "127.0.0.1:7003", b.Addr)), 0o600); err != nil {
		t.Fatal(err)
	}
	grpcAddr, web := testserver.FreeAddr(t), testserver.FreeAddr(t)
	port := func(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }
	d := started(t, documented(t, "edge.yaml"), "GRPC_UDS=", "GRPC_HOST=127.0.0.1", "GRPC_PORT="+port(grpcAddr), "WEIR_CONFIG="+config)
	gets(t, http.DefaultClient, "http://"+d.http+"/readyz", 200)
	envoy(t, documented(t, "envoy.yaml", "port_value: 8000", "port_value: "+port(web), "port_value: 8081", "port_value: "+port(grpcAddr),
		"port_value: 3000", "port_value: "+port(app.Listener.Addr().String()), "interval: 2s", "interval: 0.1s",
		// A busy machine may need longer.
		"timeout: 0.05s", "timeout: 5s"))
	gets(t, http.DefaultClient, "http://"+web+"/", 200)

	ask := func(path string) *http.Response {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, "http://"+web+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", fmt.Sprintf("192.0.2.%d", time.Now().UnixNano()%200)) // not trusted
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	// The limits are per clock minute: the 12 logins are in one or two, with 5 each.
	allowed, refused := 0, 0
	for range 12 {
		switch resp := ask("/login"); {
		case resp.StatusCode == http.StatusOK:
			allowed++
		case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "" && resp.Header.Get("X-Envoy-Ratelimited") == "true":
			refused++
		default:
			t.Errorf("a login: %s %v", resp.Status, resp.Header)
		}
	}
	if allowed < 5 || allowed > 10 || allowed+refused != 12 {
		t.Errorf("%d logins allowed, %d refused; want 5, or up to 10 if a minute ended", allowed, refused)
	}
	// The descriptors of a login are one decision: a refused login charges nothing of the 60.
	for i := range 59 - allowed { // one was the first request
		if resp := ask("/"); resp.StatusCode != http.StatusOK {
			t.Fatalf("request %d of %d that remain: %s", i, 59-allowed, resp.Status)
		}
	}
	d.terminate()
	d.ended <- <-d.ended // for its cleanup, too
	if resp := ask("/login"); resp.StatusCode != http.StatusOK {
		t.Errorf("without throttlerd: %s; want that Envoy serves", resp.Status)
	}
}
