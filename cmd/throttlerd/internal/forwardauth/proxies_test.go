package forwardauth

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/cmd/throttlerd/internal/ports"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/internal/testkit/testserver"
)

// proxied is a proxy with a documented configuration in front of an application.
type proxied struct {
	addr string
	auth *httptest.Server // throttlerd's forward auth
	dir  string

	reached atomic.Int64 // requests that the application got
}

// start prepares the documented files of a proxy, with free addresses, in a directory.
func start(t *testing.T, program, install string, files ...string) *proxied {
	t.Helper()
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin") // Debian's directory for nginx
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("%s is missing; %s", program, install)
	}
	text, err := os.ReadFile("../../../../docs/forward-auth/throttlerd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("per 1m"), []byte("per 1000h")) // no window ends during the test
	keys := new(Program)
	c, err := config.Parse("throttlerd.yaml", text, &config.Options{Program: keys})
	if err != nil {
		t.Fatal(err)
	}
	stack, err := c.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stack.Close() })
	h, err := New(stack.Throttler, c, keys.ForwardAuth, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxied{dir: t.TempDir(), auth: httptest.NewUnstartedServer(h)}
	p.auth.Listener = ports.Bounded(p.auth.Listener, ports.HTTP(), func(a net.Addr) bool { return keys.ForwardAuth.IsStranger(a.String()) })
	p.auth.Config = ports.NewServer(h, slog.New(slog.DiscardHandler))
	p.auth.Start()
	app := p.serveApp(t)
	t.Cleanup(p.auth.Close)
	p.addr = testserver.FreeAddr(t)
	_, port, _ := strings.Cut(p.addr, ":")
	addresses := strings.NewReplacer(
		"127.0.0.1:8082", p.auth.Listener.Addr().String(), "127.0.0.1:3000", app,
		"127.0.0.1:8000", p.addr, "listen 8000", "listen "+p.addr, ":8000 {", "http://:"+port+" {\n\tbind 127.0.0.1",
		"filename: traefik-routes.yml", "filename: "+filepath.Join(p.dir, "traefik-routes.yml"),
	)
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join("../../../../docs/forward-auth", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(p.dir, name), []byte(addresses.Replace(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// serveApp serves an application that accepts anything, as some do, and returns its address. Go's
// server refuses headers with control characters.
func (p *proxied) serveApp(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.answer(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return l.Addr().String()
}

func (p *proxied) answer(c *net.TCPConn) {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	method, uri := "", ""
	for lines := bufio.NewReader(c); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if method == "" {
			method, uri, _ = strings.Cut(line, " ")
		}
		if strings.TrimRight(line, "\r\n") == "" {
			break
		}
	}
	p.reached.Add(1)
	status, body := "200 OK", "the application"
	if strings.HasPrefix(uri, "/forbidden") {
		status = "403 Forbidden"
	}
	head := fmt.Sprintf("HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", status, len(body))
	if method == http.MethodHead {
		body = ""
	}
	_, _ = io.WriteString(c, head+body)
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c) // the body
}

// run runs the proxy until the test ends.
func (p *proxied) run(t *testing.T, program string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	c := exec.Command(program, args...)
	c.Dir, c.Stdout, c.Stderr = p.dir, &said, &said
	c.Env = append(os.Environ(), "HOME="+p.dir, "XDG_CONFIG_HOME="+p.dir, "XDG_DATA_HOME="+p.dir)
	if err := testserver.Start(t, c); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = c.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = c.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", program, &said)
		}
	})
	// A proxy that loads its routes after it starts to listen answers 404 until then.
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if response, err := http.Get("http://" + p.addr + "/healthz"); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ended:
			t.Fatalf("%s ended:\n%s", program, &said)
		default:
		}
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("%s does not answer for 20 s", program)
		}
	}
}

// send sends a request, and returns the response and its body.
func (p *proxied) send(t *testing.T, method, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+p.addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// check sends requests that show whether the proxy is set up: logins have a limit of 5 a
// minute, and all requests one of 60.
func (p *proxied) check(t *testing.T, headersOfAllowed bool) {
	t.Helper()
	for i := range 5 {
		// A client's own claims are not trusted.
		r, body := p.send(t, http.MethodPost, "/login?next=/healthz", "X-Forwarded-For: 192.0.2.9", "X-Forwarded-Uri: /healthz", "X-Forwarded-Method: GET", "X-Forwarded-Host: elsewhere", "X-Real-Ip: 192.0.2.9")
		if r.StatusCode != http.StatusOK || body != "the application" {
			t.Fatalf("login %d: %s %s", i, r.Status, body)
		}
		if h := r.Header; headersOfAllowed && (h.Get("X-RateLimit-Limit") != "5" || h.Get("X-RateLimit-Remaining") != string(rune('4'-i)) || h.Get("X-RateLimit-Resource") != "login" || h.Get("X-RateLimit-Reset") == "") {
			t.Errorf("login %d: headers %v", i, h)
		}
	}
	for _, path := range []string{"/login", "//login", "/x/..%2flogin", "/%6Cogin", "/login/", "/LOGIN", "/login;x=1", "/login.json", "/login%20", "/login.", "/login%2f", "/healthz/..%2flogin"} {
		r, body := p.send(t, http.MethodPost, path)
		if h := r.Header; r.StatusCode != http.StatusTooManyRequests || h.Get("Retry-After") == "" || h.Get("X-RateLimit-Remaining") != "0" || h.Get("X-RateLimit-Resource") != "login" ||
			h.Get("Cache-Control") != "no-store" || !strings.Contains(body, `{"message":"API rate limit exceeded`) || h.Get("X-Weir-Status") != "" {
			t.Errorf("%s refused: %s %v %s", path, r.Status, h, body)
		}
	}
	if r, _ := p.send(t, http.MethodHead, "/login"); r.StatusCode != http.StatusOK {
		t.Errorf("a HEAD, which is no login: %s", r.Status)
	}
	if r, body := p.send(t, http.MethodGet, "/healthz"); body != "the application" || len(r.Header.Values("X-RateLimit-Limit")) > 0 {
		t.Errorf("what is free: %s %v %s", r.Status, r.Header, body)
	}
	// As a free path, too, it is charged: Go's servers serve /search/.
	if r, _ := p.send(t, http.MethodGet, "/search/..%2fhealthz"); headersOfAllowed && r.Header.Get("X-RateLimit-Resource") != "api" {
		t.Errorf("a free path for some servers: %s %v", r.Status, r.Header)
	}
	if r, body := p.send(t, http.MethodGet, "/forbidden"); r.StatusCode != http.StatusForbidden || body != "the application" {
		t.Errorf("a 403 of the application: %s %s", r.Status, body)
	}
	p.auth.Config.Handler = http.NotFoundHandler() // not throttlerd: no answer of it allows a request
	if r, body := p.send(t, http.MethodGet, "/"); r.StatusCode < 400 || strings.Contains(body, "the application") {
		t.Errorf("with another server in place of throttlerd: %s %s", r.Status, body)
	}
	p.auth.Close()
	if r, body := p.send(t, http.MethodGet, "/"); r.StatusCode < 500 || strings.Contains(body, "the application") {
		t.Errorf("while throttlerd is away: %s %s", r.Status, body)
	}
}

func (p *proxied) runNginx(t *testing.T) {
	t.Helper()
	main := "daemon off; pid nginx.pid; error_log stderr; worker_processes 1;\nevents {}\nhttp { access_log off; "
	for _, dir := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		main += dir + "_temp_path " + filepath.Join(p.dir, dir) + "; "
	}
	if os.Getuid() == 0 {
		main = "user root;\n" + main // for the directories of bodies
	}
	if err := os.WriteFile(filepath.Join(p.dir, "main.conf"), []byte(main+"include "+filepath.Join(p.dir, "nginx.conf")+"; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.run(t, "nginx", "-p", p.dir, "-e", "stderr", "-c", filepath.Join(p.dir, "main.conf"))
}

func TestNginx(t *testing.T) {
	p := start(t, "nginx", "make proxies installs it", "nginx.conf")
	p.runNginx(t)
	p.check(t, true)
}

// withoutLimit makes nginx serve while throttlerd is away: it uncomments the line for that.
func (p *proxied) withoutLimit(t *testing.T) {
	t.Helper()
	const line = "# error_page 502 504"
	file := filepath.Join(p.dir, "nginx.conf")
	text, err := os.ReadFile(file)
	if err == nil && bytes.Count(text, []byte(line)) != 1 {
		t.Fatalf("nginx.conf has no line %s", line)
	}
	if err == nil {
		// The application takes uploads.
		text = bytes.Replace(text, []byte("auth_request /_limit;"), []byte("auth_request /_limit; client_max_body_size 10m;"), 1)
		err = os.WriteFile(file, bytes.Replace(text, []byte(line), []byte(line[2:]), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestNginxServesWithoutThrottlerd(t *testing.T) {
	p := start(t, "nginx", "make proxies installs it", "nginx.conf")
	p.withoutLimit(t)
	p.runNginx(t)
	p.attack(t)
	p.auth.Config.Handler = http.NotFoundHandler()
	if r, body := p.send(t, http.MethodGet, "/"); r.StatusCode < 400 || strings.Contains(body, "the application") {
		t.Errorf("with another server in place of throttlerd: %s %s", r.Status, body)
	}
	p.auth.Close()
	if r, body := p.send(t, http.MethodGet, "/"); r.StatusCode != http.StatusOK || body != "the application" {
		t.Errorf("while throttlerd is away: %s %s", r.Status, body)
	}
}

func TestCaddy(t *testing.T) {
	p := startCaddy(t)
	p.check(t, true)
}

func TestCaddyUnderAttack(t *testing.T) { startCaddy(t).attack(t) }

func startCaddy(t *testing.T) *proxied {
	t.Helper()
	p := start(t, "caddy", "make proxies installs it", "Caddyfile")
	file := filepath.Join(p.dir, "Caddyfile")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append([]byte("{\n\tadmin off\n\tauto_https off\n}\n"), text...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.run(t, "caddy", "run", "--config", file, "--adapter", "caddyfile")
	return p
}
