package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-go/weir/cmd/internal/build"
	"github.com/weir-go/weir/internal/testkit/testserver"
)

// gets waits until a page has a status.
func gets(t *testing.T, client *http.Client, url string, want int) {
	t.Helper()
	eventually(t, func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode != want {
			err = fmt.Errorf("%s: %s %s; want %d", url, resp.Status, body, want)
		}
		return err
	})
}

func TestProbes(t *testing.T) {
	t.Parallel() // it waits most of the time
	d := started(t, "domain: d\nwrong: true\n")
	gets(t, http.DefaultClient, "http://"+d.http+"/healthz", 200)
	gets(t, http.DefaultClient, "http://"+d.http+"/readyz", 503)
	d.write(perYear)
	gets(t, http.DefaultClient, "http://"+d.http+"/readyz", 200)
	gets(t, http.DefaultClient, "http://"+d.debug+"/readyz", 200)
}

// The page and the log say the limit and, only with WEIR_SHOW_KEYS, the key.
func TestRefusedKeys(t *testing.T) {
	for _, shows := range []bool{false, true} {
		d := started(t, perYear, fmt.Sprint("WEIR_SHOW_KEYS=", shows))
		for range 5 {
			if _, err := d.ask("alice"); err != nil {
				t.Fatal(err)
			}
		}
		_, text := d.page("http://"+d.debug+"/debug/weir?format=refused", "")
		_, page := d.page("http://"+d.debug+"/debug/weir", "")
		log := d.log.String()
		for _, text := range []string{text, page, log} {
			if !strings.Contains(text, "3 per 365d") || strings.Contains(text, "user=alice") != shows {
				t.Errorf("with WEIR_SHOW_KEYS=%t: %s; want the limit", shows, text)
			}
		}
		if strings.Contains(log, "the keys of refused clients") != shows {
			t.Errorf("with WEIR_SHOW_KEYS=%t: %s", shows, log)
		}
	}
}

// /stats has the counters by the names of envoyproxy/ratelimit.
func TestStats(t *testing.T) {
	server := testserver.Redis(t)
	d := started(t, perYear, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr, "LOCAL_CACHE_SIZE_IN_BYTES=1000000")
	for range 6 {
		if _, err := d.ask("alice"); err != nil {
			t.Fatal(err)
		}
	}
	d.page("http://"+d.http+"/json", `{"domain":"nothing","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}`)
	_, text := d.page("http://"+d.debug+"/stats", "")
	for _, want := range []string{
		"ratelimit.service.rate_limit.d.user.total_hits: 6", "ratelimit.service.rate_limit.d.user.over_limit: 3", "ratelimit.service.rate_limit.nothing.domain_not_found: 1",
		"ratelimit.localcache.hitCount: 2", "ratelimit.service.config_load_success: 1", "ratelimit_server.ShouldRateLimit.total_requests: 7",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

// A server's certificate may have another name if the variable says so, and no other authority.
func TestAnyNameInCertificates(t *testing.T) {
	server := testserver.RedisTLS(t)
	_, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=localhost:" + port, "REDIS_TLS=true", // not 127.0.0.1, which the certificate has
		"REDIS_TLS_CLIENT_CERT=" + server.CertFile, "REDIS_TLS_CLIENT_KEY=" + server.KeyFile}
	known := append(environ, "REDIS_TLS_CACERT="+server.CAFile)
	for _, c := range []struct {
		environ []string
		works   bool
	}{
		{append(slices.Clip(known), "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"), true},
		{slices.Clip(known), false},
		{append(slices.Clip(environ), "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"), false}, // of an unknown authority
	} {
		d := started(t, perYear, c.environ...)
		d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
		if _, err := d.ask("alice"); (err == nil) != c.works {
			t.Errorf("%v; want an answer: %t", err, c.works)
		}
	}
}

// A call that is part of a trace has a span, and so has its decision.
func TestTraces(t *testing.T) {
	received := new(lockedBuffer)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(received, r.Body) }))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	d := started(t, perYear, "TRACING_ENABLED=true", "TRACING_SERVICE_NAME=limits", "TRACING_SAMPLING_RATE=0")
	d.remains("bob", 2) // in no trace, and none are sampled
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	_, err := d.rls.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "alice"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	d.terminate()
	d.ended <- <-d.ended // for its cleanup, too
	id, _ := hex.DecodeString(trace)
	for _, want := range []string{"limits", "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "weir.take"} {
		if !strings.Contains(received.String(), want) {
			t.Errorf("the collector does not have %q", want)
		}
	}
	if n := bytes.Count([]byte(received.String()), id); n != 2 {
		t.Errorf("the collector has %d spans of the trace, want 2", n)
	}
	if strings.Contains(received.String(), "alice") {
		t.Error("the collector has a key")
	}
}

func TestTLS(t *testing.T) {
	files := testserver.RedisTLS(t) // for its certificates
	dir := filepath.Dir(files.CAFile)
	cert, key := filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	d := started(t, perYear,
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+cert, "GRPC_SERVER_TLS_KEY="+key, "GRPC_CLIENT_TLS_CACERT="+files.CAFile,
		"WEIR_HTTP_TLS_CERT="+cert, "WEIR_HTTP_TLS_KEY="+key)
	pem, err := os.ReadFile(files.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	stranger := &tls.Config{RootCAs: roots, ServerName: testserver.ServerName}
	known := stranger.Clone()
	known.Certificates = []tls.Certificate{pair}

	gets(t, &http.Client{Transport: &http.Transport{TLSClientConfig: stranger, ForceAttemptHTTP2: true}}, "https://"+d.http+"/readyz", 200)
	gets(t, http.DefaultClient, "http://"+d.debug+"/readyz", 200)
	asks := func(c *tls.Config) error {
		conn, err := grpc.NewClient("unix:"+filepath.Join(d.dir, "grpc.sock"), grpc.WithTransportCredentials(credentials.NewTLS(c)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: healthName})
		return err
	}
	if err := asks(known); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if err := asks(stranger); err == nil {
		t.Error("without a certificate: no error")
	}
	if _, err := d.health.Check(t.Context(), new(grpc_health_v1.HealthCheckRequest)); err == nil {
		t.Error("in plain text: no error")
	}
}

func TestCheckReadsCertificates(t *testing.T) {
	var out, log bytes.Buffer
	err := run(t.Context(), []string{"-check"}, []string{"BACKEND_TYPE=memory", "RUNTIME_ROOT=" + t.TempDir(), "WEIR_HTTP_TLS_CERT=none.crt", "WEIR_HTTP_TLS_KEY=none.key"}, &out, &log)
	if err == nil || !strings.Contains(err.Error(), "the certificate is none.crt and its key none.key; they must be a pair in PEM") {
		t.Errorf("error %v", err)
	}
	err = run(t.Context(), []string{"-check"}, []string{"BACKEND_TYPE=memory", "GRPC_SERVER_TLS_CERT=a.crt", "TRACING_SAMPLING_RATE=2"}, &out, &log)
	if err == nil || !strings.Contains(err.Error(), "GRPC_SERVER_USE_TLS is false") || !strings.Contains(err.Error(), "TRACING_SAMPLING_RATE is 2; it must be from 0 to 1") {
		t.Errorf("error %v", err)
	}
}

// -check names a directory that does not exist, and warns of one without files.
func TestCheckWithoutDescriptors(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "config")
	var out, log bytes.Buffer
	environ := []string{"BACKEND_TYPE=memory", "RUNTIME_ROOT=" + root}
	if err := run(t.Context(), []string{"-check"}, environ, &out, &log); err == nil || !strings.Contains(err.Error(), "RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY, is "+dir) {
		t.Errorf("without the directory: error %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"-check"}, environ, &out, &log); err != nil || !strings.Contains(out.String(), "warning: "+dir+" has no file: every request is allowed\n") {
		t.Errorf("without files: error %v, %s", err, &out)
	}
}

// What has no effect is warned of by -check, and in the log.
func TestWarnings(t *testing.T) {
	d := started(t, "domain: d\ndescriptors:\n- {key: a, shadow_mode: true, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}\n")
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	config := filepath.Join(d.dir, "weir.yaml")
	if err := os.WriteFile(config, []byte("backend: memory\npolicies: {core: [10 per 10s, 600 per 600s], unused: 1 per 1h}\ndry_runs: {core: 5 per 10s}\nforward_auth: {listen: '127.0.0.1:1', trusted_proxies: [127.0.0.0/8], rules: [{charge: [core by ip]}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	err := run(t.Context(), []string{"-check"}, []string{"WEIR_CONFIG=" + config, "RUNTIME_ROOT=" + d.dir}, &out, &log)
	if err != nil || !strings.Contains(out.String(), "warning: ") || !strings.Contains(out.String(), "limit 1, 600 per 10m0s (fixed-window), can never refuse") || !strings.HasSuffix(out.String(), "the configuration is right\n") {
		t.Errorf("%v, %s", err, &out)
	}
	if want := "warning: no rule of forward_auth and no descriptor charges the policies \"unused\"; they have no effect\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%s is not in %s", want, &out)
	}
	if want := "warning: dry_runs has no effect: throttlerd tries no policies"; !strings.Contains(out.String(), want) {
		t.Errorf("%s is not in %s", want, &out)
	}
	const shadow = ".yaml: descriptors[0].shadow_mode has no effect"
	if !strings.Contains(out.String(), shadow) || !strings.Contains(d.log.String(), shadow) {
		t.Errorf("%q is not in\n%s\nand\n%s", shadow, &out, d.log)
	}
}

func TestCheckReadsCertificatesOfTheManagementServer(t *testing.T) {
	var out, log bytes.Buffer
	err := run(t.Context(), []string{"-check"}, []string{"BACKEND_TYPE=memory", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=none.crt"}, &out, &log)
	if err == nil || !strings.Contains(err.Error(), "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: open none.crt") {
		t.Errorf("error %v", err)
	}
}

// GRPC_UDS replaces a socket that a killed process left, and no other file.
func TestSocketReplacesNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	environ := []string{"BACKEND_TYPE=memory", "RUNTIME_ROOT=" + t.TempDir(), "GRPC_UDS=" + file, "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0"}
	err := run(ended, nil, environ, io.Discard, io.Discard)
	if text, readErr := os.ReadFile(file); err == nil || readErr != nil || string(text) != "text" {
		t.Errorf("error %v; the file is %q, %v", err, text, readErr)
	}
}

// The version is in the output of -version, and in the log when the service begins.
func TestVersion(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-version"}, nil, &out, io.Discard); err != nil || out.String() != build.Line("throttlerd") {
		t.Errorf("-version prints %q, %v; want %q", &out, err, build.Line("throttlerd"))
	}
	d := started(t, perYear)
	release, _ := build.Version()
	eventually(t, func() error {
		if line := "msg=serving version=" + release + " revision="; !strings.Contains(d.log.String(), line) {
			return fmt.Errorf("the log has no line with %s", line)
		}
		return nil
	})
}
