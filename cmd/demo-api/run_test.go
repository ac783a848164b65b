package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/cmd/internal/build"
	"github.com/weir-go/weir/cmd/internal/cmdline"
)

func TestArguments(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	wrong := writeConfig(t, "backend: disk\n")
	right := writeConfig(t, "policies:\n  core: {limits: [{quota: 10, window: 10s}, {quota: 600, window: 600s}]}\n")
	for _, test := range []struct {
		args      string
		wantOut   string
		wantError string
		usage     bool // it ends with exit code 2
	}{
		{"-h", help, "", false},
		{"-help", help, "", false},
		{"-version", build.Line("demo-api"), "", false},
		{"-port 80", "", "flag provided but not defined: -port\nrun demo-api -h for help", true},
		{"-listen", "", "flag needs an argument: -listen\nrun demo-api -h for help", true},
		{"-listen 8080", "", "-listen is \"8080\"; it must be a host and a port, such as 127.0.0.1:8080\nrun demo-api -h for help", true},
		{"demo.yaml", "", "unexpected argument \"demo.yaml\"\nrun demo-api -h for help", true},
		{"-config no-such.yaml", "", "the configuration is wrong, nothing was started\nno-such.yaml: no such file or directory", true},
		{"-config " + wrong, "", "the configuration is wrong, nothing was started\n" + wrong + ":1: backend is \"disk\"; it must be memory, redis, redis-resharded, memcached or shares", true},
		{"-check -config " + wrong, "", "the configuration is wrong, nothing was started\n" + wrong + ":1: backend is \"disk\"; it must be memory, redis, redis-resharded, memcached or shares", true},
		{"-check -config " + right, "warning: policy \"core\": limit 1, 600 per 10m0s (fixed-window), can never refuse", "", false},
		{"-check -config example.yaml", "the configuration is right\n", "", false},
		{"-check -config docker/demo.yaml", "warning: debug_listen is 0.0.0.0:8081, which is not on loopback: other machines may reach it, and it has no password\nthe configuration is right\n", "", false},
		{"-listen " + taken.Addr().String(), "", taken.Addr().String() + " is in use by another program; choose another address, such as -listen 127.0.0.1:8081, or any free port with -listen 127.0.0.1:0", false},
	} {
		var out strings.Builder
		err := run(t.Context(), strings.Fields(test.args), &out, newOutput())
		if text := fmt.Sprint(err); test.wantError == "" && err != nil || test.wantError != "" && text != test.wantError {
			t.Errorf("%s: got error %v, want %q", test.args, err, test.wantError)
		}
		var usage *cmdline.UsageError
		if errors.As(err, &usage) != test.usage {
			t.Errorf("%s: exit code 2 is %v, want %v", test.args, !test.usage, test.usage)
		}
		if !strings.HasPrefix(out.String(), test.wantOut) {
			t.Errorf("%s: got %q, want %q…", test.args, out.String(), test.wantOut)
		}
	}
}

func TestExampleIsTheDefault(t *testing.T) {
	text, err := os.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	own, c, err := parse("example.yaml", string(text))
	if err != nil {
		t.Fatal(err)
	}
	_, defaults, err := parse("demo.yaml", "{}")
	if err != nil {
		t.Fatal(err)
	}
	want := defaultSettings()
	want.TrustedProxies = own.TrustedProxies // nil by default
	if !reflect.DeepEqual(own, want) || c.Deadline != defaults.Deadline {
		t.Errorf("got %+v and a deadline of %v, want %+v and %v", own, c.Deadline, want, defaults.Deadline)
	}
	for name, p := range defaults.Policies {
		if got, want := fmt.Sprint(c.Policies[name].Limits), fmt.Sprint(p.Limits); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestGreetingCanBeTyped(t *testing.T) {
	d := startDemo(t, "")
	commands := regexp.MustCompile(`(?m)^  curl +(?:-i )?"?(http://[^\s"]+)"?(?: -H '(.+): (.+)')?$`).FindAllStringSubmatch(d.stdout.String(), -1)
	if lines := strings.Count(d.stdout.String(), "  curl "); lines != len(commands) || lines != 7 {
		t.Errorf("%d lines with curl, %d of a known form; want 7, in\n%s", lines, len(commands), d.stdout)
	}
	for _, c := range commands {
		headers := c[2:]
		if c[2] == "" {
			headers = nil
		}
		if r, err := d.ask("GET", c[1], headers...); err != nil || r.status != 200 || headers != nil && !strings.HasPrefix(r.rates(), "1/") {
			t.Errorf("%s: got %v, error %v, want 200", c[0], r, err)
		}
	}
}

// TestGreetingSaysWhereItListens compares the greeting with the address that reaches the
// listener.
func TestGreetingSaysWhereItListens(t *testing.T) {
	secret := &settings{Tokens: tokens{"s3cr3t": {Subject: "alice"}}}
	for _, test := range []struct {
		own        *settings
		addr, want string
	}{
		{defaultSettings(), "127.0.0.1:80", "serving on http://127.0.0.1:80; counts live in memory. Open it in a browser, or try:"},
		{defaultSettings(), "[::1]:82", "serving on http://[::1]:82; counts live in memory. Open it in a browser, or try:"},
		{defaultSettings(), "192.0.2.1:80", "serving on http://192.0.2.1:80; counts live in memory. Open it in a browser, or try:"},
		{defaultSettings(), "0.0.0.0:80", "serving on http://127.0.0.1:80; on all interfaces of this machine, open to others; counts live in memory. Open it in a browser, or try:"},
		{secret, "[::]:81", "serving on http://127.0.0.1:81; on all interfaces of this machine, open to others; counts live in memory. Open it in a browser, or try:"},
	} {
		a, err := net.ResolveTCPAddr("tcp", test.addr)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		greet(&out, test.own, "memory", a, nil)
		if got, _, _ := strings.Cut(out.String(), "\n"); got != test.want {
			t.Errorf("%s: got %q, want %q", test.addr, got, test.want)
		}
		if strings.Contains(out.String(), "s3cr3t") {
			t.Errorf("the greeting shows a configured token: %s", out.String())
		}
	}
}

func TestWarningsAreLogged(t *testing.T) {
	d := startDemo(t, "policies:\n  core: {limits: [{quota: 10, window: 10s}, {quota: 600, window: 600s}]}\n  reports: {limits: [{quota: 1, window: 1s}]}\n")
	for _, want := range []string{`limit 1, 600 per 10m0s (fixed-window), can never refuse`, `nothing uses the policies \"reports\"; the program uses core, search, auth.createToken, org, org.member, secondary, core.pro, streams, upstream`} {
		if got := d.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("got log %q, want %q in it", got, want)
		}
	}
}

// TestDrain ends a demo while a request is in flight: it is answered, new requests are not.
func TestDrain(t *testing.T) {
	d := startDemo(t, "")
	answered := make(chan response, 1)
	go func() {
		r, err := d.try("GET", "/slow?for=1s", "Authorization", "Bearer one")
		if err != nil {
			r.body = err.Error()
		}
		answered <- r
	}()
	// The request has arrived when it is charged.
	for charged := regexp.MustCompile(`"used":\s*1`); !charged.MatchString(d.get("/rate_limit", "Authorization", "Bearer one").body); {
		time.Sleep(time.Millisecond)
	}
	d.stop()
	d.stderr.find(t, "(ending)", d.ended)
	for {
		conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
		if err != nil {
			break
		}
		conn.Close()
	}
	if r := <-answered; r.status != 200 || r.rates() != "1/60 core" {
		t.Errorf("request in flight: got %v, want 200 1/60 core", r)
	}
	if err := d.end(); err != nil {
		t.Errorf("run: %v", err)
	}
}

// TestHangupEndsNothing sends SIGHUP while a request is in flight.
func TestHangupEndsNothing(t *testing.T) {
	d := startDemo(t, "")
	answered := make(chan response, 1)
	go func() {
		r, _ := d.try("GET", "/slow?for=300ms")
		answered <- r
	}()
	for charged := regexp.MustCompile(`"used":\s*1`); !charged.MatchString(d.get("/rate_limit").body); {
		time.Sleep(time.Millisecond)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	d.stderr.find(t, "(nothing has changed that can)", d.ended)
	if r := <-answered; r.status != 200 {
		t.Errorf("request in flight: got %v, want 200", r)
	}
	if r := d.get("/repos/acme/rockets"); r.rates() != "2/60 core" {
		t.Errorf("after it: got %v, want 200 2/60 core", r)
	}
}

func TestDebugListenerIsAChoice(t *testing.T) {
	off := newOutput()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-listen", "127.0.0.1:0", "-config", writeConfig(t, "debug_listen: off\n")}, off, newOutput())
	}()
	off.find(t, `(curl +http://\S+/rate_limit)`, ended)
	if strings.Contains(off.String(), "/debug") {
		t.Errorf("debug_listen: off: it greets with %s", off)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = run(t.Context(), []string{"-listen", "127.0.0.1:0", "-config", writeConfig(t, fmt.Sprintf("debug_listen: %s\n", taken.Addr()))}, newOutput(), newOutput())
	if want := taken.Addr().String() + " is in use by another program; choose another address, such as debug_listen: 127.0.0.1:0 for any free port"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestLogKeepsSecrets(t *testing.T) {
	d := startDemo(t, deadShards)
	const token, query = "s3cr3t-t0k3n", "pr1v4t3"
	d.get("/search?q="+query, "Authorization", "Bearer "+token)
	_, issued, ok := strings.Cut(d.send("POST", "/auth/token").body, "demo_")
	if !ok {
		t.Fatal("no token was issued")
	}
	issued, _, _ = strings.Cut(issued, `"`)
	d.stop()
	_ = d.end()
	for _, secret := range []string{token, query, issued} {
		if log := d.stderr.String(); strings.Contains(log, secret) {
			t.Errorf("log has %q: %s", secret, log)
		}
	}
}
