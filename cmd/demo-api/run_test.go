package main

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"
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
		{"-port 80", "", "flag provided but not defined: -port\nrun demo-api -h for help", true},
		{"-listen", "", "flag needs an argument: -listen\nrun demo-api -h for help", true},
		{"-listen 8080", "", "-listen is \"8080\"; it must be a host and a port, such as 127.0.0.1:8080\nrun demo-api -h for help", true},
		{"demo.yaml", "", "unexpected argument \"demo.yaml\"\nrun demo-api -h for help", true},
		{"-config no-such.yaml", "", "the configuration is wrong, nothing was started\nopen no-such.yaml: no such file or directory", true},
		{"-config " + wrong, "", "the configuration is wrong, nothing was started\n" + wrong + ":1: backend is \"disk\"; it must be memory, redis, redis-resharded or memcached", true},
		{"-check -config " + wrong, "", "the configuration is wrong, nothing was started\n" + wrong + ":1: backend is \"disk\"; it must be memory, redis, redis-resharded or memcached", true},
		{"-check -config " + right, "warning: policy \"core\": limit 1, 600 per 10m0s (fixed-window), can never refuse", "", false},
		{"-check -config example.yaml", "the configuration is right\n", "", false},
		{"-check -config docker/demo.yaml", "the configuration is right\n", "", false},
		{"-listen " + taken.Addr().String(), "", taken.Addr().String() + " is in use by another program; choose another address, such as -listen 127.0.0.1:8081, or any free port with -listen 127.0.0.1:0", false},
	} {
		var out strings.Builder
		err := run(t.Context(), strings.Fields(test.args), &out, newOutput())
		if text := fmt.Sprint(err); test.wantError == "" && err != nil || test.wantError != "" && text != test.wantError {
			t.Errorf("%s: got error %v, want %q", test.args, err, test.wantError)
		}
		var usage *usageError
		if errors.As(err, &usage) != test.usage {
			t.Errorf("%s: exit code 2 is %v, want %v", test.args, !test.usage, test.usage)
		}
		if !strings.HasPrefix(out.String(), test.wantOut) {
			t.Errorf("%s: got %q, want %q…", test.args, out.String(), test.wantOut)
		}
	}
}

func TestExampleIsTheDefault(t *testing.T) {
	c, err := loadConfig("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := defaultConfig()
	got := fmt.Sprint(c.listen, c.deadline, c.failClosed)
	if w := fmt.Sprint(want.listen, want.deadline, want.failClosed); got != w {
		t.Errorf("got %s, want %s", got, w)
	}
	for name, p := range want.policies {
		if got, want := fmt.Sprint(c.policies[name].Limits), fmt.Sprint(p.Limits); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestGreetingCanBeTyped(t *testing.T) {
	d := startDemo(t, "")
	for _, line := range strings.Split(d.stdout.String(), "\n") {
		url, ok := strings.CutPrefix(strings.Trim(line[strings.LastIndex(line, " ")+1:], `"`), d.url)
		if !strings.HasPrefix(strings.TrimSpace(line), "curl") {
			continue
		}
		if r := d.get(url); !ok || r.status != 200 {
			t.Errorf("%s: got %v, want 200", line, r)
		}
	}
	for addr, want := range map[string]string{
		"0.0.0.0:80": "http://127.0.0.1:80/", "[::]:81": "http://127.0.0.1:81/", "[::1]:82": "http://[::1]:82/",
	} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		greet(&out, defaultConfig(), a)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: got %q, want %s", addr, out.String(), want)
		}
	}
}

func TestWarningsAreLogged(t *testing.T) {
	d := startDemo(t, "policies:\n  core: {limits: [{quota: 10, window: 10s}, {quota: 600, window: 600s}]}\n  serach: {limits: [{quota: 1, window: 1s}]}\n")
	for _, want := range []string{`limit 1, 600 per 10m0s (fixed-window), can never refuse`, `policy \"serach\" limits no route; the routes use core, search, auth.createToken, org, org.member`} {
		if got := d.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("got log %q, want %q in it", got, want)
		}
	}
}

// TestDrain ends a demo while a request is in flight: it is answered, new ones
// are not.
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
