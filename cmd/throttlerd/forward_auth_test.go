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

	"github.com/weir-go/weir/cmd/internal/cmdline"
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
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(5 * time.Millisecond) {
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

// Next to a directory without descriptors, the log and -check say that forward auth limits requests.
func TestForwardAuthNextToAnEmptyDirectory(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "policies: {api: 60 per 1m}\nforward_auth: {listen: '" + testserver.FreeAddr(t) + "', trusted_proxies: [127.0.0.0/8], rules: [{charge: [api by ip]}]}\n"
	const want = "every call of Envoy is allowed, and forward_auth alone limits requests"
	log := serving(t, text, "RUNTIME_ROOT="+root)
	eventually(t, func() error {
		if text := fmt.Sprint(log); !strings.Contains(text, "the configuration has no domain: "+want) {
			return fmt.Errorf("the log is\n%s", text)
		}
		return nil
	})
	file := filepath.Join(root, "weir.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errors bytes.Buffer
	if err := run(t.Context(), []string{"-check"}, []string{"WEIR_CONFIG=" + file, "RUNTIME_ROOT=" + root}, &out, &errors); err != nil || !strings.Contains(out.String(), "has no file: "+want+"\n") {
		t.Errorf("-check: error %v, %s", err, &out)
	}
}

func TestForwardAuthIsChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	text := "policies: {api: 60 per 1m}\nforward_auth: {listen: '127.0.0.1:0', trusted_proxies: [127.0.0.0/8], rules: [{charge: [apis by ip]}]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	err := run(t.Context(), []string{"-check"}, []string{"WEIR_CONFIG=" + file}, &out, &log)
	if wrong := (*cmdline.UsageError)(nil); !errors.As(err, &wrong) || !strings.Contains(err.Error(), `"apis" is no policy of the file; it must be one of api`) {
		t.Errorf("error %v", err)
	}
}

// Shares divide the policies of their file, and can't count for descriptors.
func TestSharesAreForForwardAuthAlone(t *testing.T) {
	key := filepath.Join(t.TempDir(), "shares.key")
	if err := os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	const forwardAuth = "forward_auth: {listen: '127.0.0.1:0', trusted_proxies: [127.0.0.0/8], rules: [{charge: [api by ip]}]}\n"
	const xds = "CONFIG_TYPE=GRPC_XDS_SOTW"
	for name, c := range map[string]struct {
		own, descriptors string
		environ          []string
		wrong            bool
	}{
		"descriptors":             {"", perYear, nil, true},
		"both":                    {forwardAuth, perYear, nil, true},
		"forward auth alone":      {forwardAuth, "", nil, false},
		"nothing":                 {"", "", nil, true},
		"descriptors of a server": {forwardAuth, "", []string{xds}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, self := t.TempDir(), testserver.FreeAddr(t)
			text := "backend: shares\nshares: {self: '" + self + "', members: ['" + self + "'], key_file: " + key + "}\n" +
				"policies: {api: {limits: [{quota: 60, window: 1m, algorithm: token-bucket}]}}\n" + c.own
			for name, text := range map[string]string{"weir.yaml": text, "config/a.yaml": c.descriptors} {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); text != "" && err != nil {
					t.Fatal(err)
				}
			}
			if c.descriptors == "" {
				if err := os.RemoveAll(filepath.Join(dir, "config")); err != nil {
					t.Fatal(err)
				}
			}
			environ := append([]string{"WEIR_CONFIG=" + filepath.Join(dir, "weir.yaml"), "RUNTIME_ROOT=" + dir, "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0"}, c.environ...)
			ended, end := context.WithCancel(t.Context())
			end()
			for _, args := range [][]string{{"-check"}, nil} {
				err := run(ended, args, environ, io.Discard, io.Discard)
				named := err != nil && strings.Count(err.Error(), "backend is shares, which counts the policies of this file alone, and no descriptors; ") == 1
				if named != c.wrong || err != nil && !c.wrong {
					t.Errorf("%s: error %v; wrong is %t", args, err, c.wrong)
				}
			}
		})
	}
}
