package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// serving runs the program on a file with that text until the test ends.
func serving(t *testing.T, text string, environ ...string) (log *lockedBuffer) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	environ = append([]string{"WEIR_CONFIG=" + file, "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0"}, environ...)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	log = new(lockedBuffer)
	go func() { ended <- run(ctx, nil, environ, io.Discard, log) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the program ended with %v\n%s", err, log)
		}
	})
	return log
}

// eventually calls do until it returns no error.
func eventually(t *testing.T, do func() error) {
	t.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
		if err = do(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func TestForwardAuthIsServed(t *testing.T) {
	text, err := os.ReadFile("../../docs/forward-auth/throttlerd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	addr := testserver.FreeAddr(t)
	log := serving(t, strings.Replace(string(text), "127.0.0.1:8082", addr, 1), "RUNTIME_ROOT="+t.TempDir())
	eventually(t, func() error {
		r, _ := http.NewRequest(http.MethodGet, "http://"+addr+"/", nil)
		for name, value := range map[string]string{"Method": "GET", "Host": "example.com", "Uri": "/", "For": "192.0.2.1"} {
			r.Header.Set("X-Forwarded-"+name, value)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if got := response.Header.Get("X-RateLimit-Resource"); response.StatusCode != http.StatusOK || got != "api" {
			t.Errorf("%s, charged under %q; want 200 under api", response.Status, got)
		}
		return nil
	})
	eventually(t, func() error {
		if text := fmt.Sprint(log); !strings.Contains(text, "forward auth alone is served") || strings.Contains(text, "level=ERROR") {
			return fmt.Errorf("without descriptors, the log is\n%s", text)
		}
		return nil
	})
}

func TestForwardAuthIsChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	text := "policies: {api: 60 per 1m}\nforward_auth: {listen: '127.0.0.1:0', trusted_proxies: [127.0.0.0/8], rules: [{charge: [apis by ip]}]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	err := run(t.Context(), []string{"-check"}, []string{"WEIR_CONFIG=" + file}, &out, &log)
	if wrong := (*usageError)(nil); !errors.As(err, &wrong) || !strings.Contains(err.Error(), `"apis" is no policy of the file; it must be one of api`) {
		t.Errorf("error %v", err)
	}
}
