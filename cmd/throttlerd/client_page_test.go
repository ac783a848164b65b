package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

const password = "correct horse battery"

// operators writes a file of operators, and returns its variable.
func operators(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "operators")
	if err := os.WriteFile(file, []byte("# on call\ndora:"+password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "WEIR_OPERATORS_FILE=" + file
}

// request sends a request to the page about one client, as dora if password is not empty.
func (d *daemon) request(method, query string, form url.Values, password string, header ...string) (status int, text string) {
	d.t.Helper()
	r, err := http.NewRequest(method, "http://"+d.debug+"/debug/weir/client?"+query, strings.NewReader(form.Encode()))
	if err != nil {
		d.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	if password != "" {
		r.SetBasicAuth("dora", password)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// act presses a button, and checks the response.
func (d *daemon) act(status int, want string, fields ...string) {
	d.t.Helper()
	form := url.Values{"reason": {"called at 3 am"}, "for": {"1h"}}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	if got, text := d.request(http.MethodPost, "kind=key&client=x", form, password); got != status || !strings.Contains(text, want) {
		d.t.Errorf("%v: %d %s; want %d, %s", form, got, text, status, want)
	}
}

// An action is in force when the page answers: the limits of one client with its count kept, a
// block, its end, and a reset.
func TestActionsOnAClient(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, level := range []string{"exact", "leased", "synced"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel() // its processes take their changes once a second
			server := testserver.Redis(t)
			text := strings.ReplaceAll(perYear, "requests_per_unit: 3", "requests_per_unit: 3, consistency: "+level)
			d := started(t, text, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr, operators(t))
			for _, want := range []int{2, 1, 0, -1} {
				d.remains("alice", want)
			}
			now := func(want int) {
				t.Helper()
				if got, err := d.ask("alice"); got != want || err != nil {
					t.Errorf("%d remain, %v; want %d", got, err, want)
				}
			}
			look := func(wants ...string) {
				t.Helper()
				_, text := d.request(http.MethodGet, "kind=descriptors&client=d+user=alice", nil, password)
				for _, want := range wants {
					if !strings.Contains(text, want) {
						t.Errorf("%s; want %s", text, want)
					}
				}
			}
			alice := []string{"policy", "d.user", "key", "d?user=alice"}
			look("Refused by d.user</span> until", "3 per 365d aligned")
			d.act(200, "The limits are in force.", append(alice, "action", "raise", "limits", "10 per 365d aligned")...)
			now(6) // the 7th of 10: the count is kept
			look("Allowed", "10 per 365d aligned", "dora", "called at 3 am")
			d.act(200, "The client is blocked.", append(alice, "action", "block")...)
			now(-1)
			look("Refused by d.user</span> until", "Unblock")
			d.act(200, "The override is removed", append(alice, "action", "unblock")...)
			now(-1)
			d.act(200, "The count is reset.", append(alice, "action", "reset")...)
			now(2)
			for _, want := range []string{"operator=dora", "action=raise", "action=block", "action=unblock", "action=reset", `reason="called at 3 am"`} {
				if !strings.Contains(d.log.String(), want) {
					t.Errorf("%s is not in the log", want)
				}
			}
			if strings.Contains(d.log.String(), "user=alice") {
				t.Error("the log has a key")
			}
		})
	}
}

// An action at one process is in force at another.
func TestActionsReachEveryProcess(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, level := range []string{"exact", "leased", "synced"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel() // its processes take their changes once a second
			server := testserver.Redis(t)
			text := strings.ReplaceAll(perYear, "requests_per_unit: 3", "requests_per_unit: 3, consistency: "+level)
			environ := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + server.Addr, operators(t)}
			first, second := started(t, text, environ...), started(t, text, environ...)
			allows := func(d *daemon, want bool) {
				t.Helper()
				eventually(t, func() error {
					got, err := d.ask("alice")
					if err == nil && got >= 0 != want {
						err = fmt.Errorf("%d remain; want that a request is allowed: %t", got, want)
					}
					return err
				})
			}
			allows(first, false)
			allows(second, false)
			act := func(action string) {
				t.Helper()
				first.act(200, `role="status"`, "policy", "d.user", "key", "d?user=alice", "action", action, "limits", "1000000 per 365d aligned")
			}
			for _, step := range []struct {
				action string
				want   bool
			}{{"raise", true}, {"block", false}, {"unblock", false}} {
				act(step.action)
				allows(second, step.want)
			}
			act("reset")
			eventually(t, func() error {
				got, err := second.ask("alice")
				if err == nil && got < 0 {
					// Units of the second process that were not synced stay: an operator does it again.
					form := url.Values{"policy": {"d.user"}, "key": {"d?user=alice"}, "action": {"reset"}, "reason": {"again"}}
					first.request(http.MethodPost, "kind=key&client=x", form, password)
					err = errors.New("refused after a reset")
				}
				return err
			})
		})
	}
}

// Errors say what would be right.
func TestActionsThatAreWrong(t *testing.T) {
	server := testserver.Redis(t)
	d := started(t, perYear, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr, operators(t))
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	for _, c := range []struct {
		want   string
		fields []string
	}{
		{"&#34;d.usr&#34; is no policy of", []string{"policy", "d.usr", "key", "d?user=alice", "action", "block"}},
		{"did you mean d.user?", []string{"policy", "d.usr", "key", "d?user=alice", "action", "block"}},
		{"a key must be as &#34;d?user=VALUE&#34;", []string{"policy", "d.user", "key", "d?usr=alice", "action", "block"}},
		{"did you mean &#34;d?user=alice&#34;?", []string{"policy", "d.user", "key", "alice", "action", "block"}},
		{"nothing is counted for d?user=alice under d.user", []string{"policy", "d.user", "key", "d?user=alice", "action", "reset"}},
		{"has no override for d?user=alice", []string{"policy", "d.user", "key", "d?user=alice", "action", "unblock"}},
		{"limit is &#34;many&#34;; it must be a quota, per, and a window", []string{"policy", "d.user", "key", "d?user=alice", "action", "raise", "limits", "many"}},
		{"the limits are empty", []string{"policy", "d.user", "key", "d?user=alice", "action", "raise"}},
		{"the reason is empty", []string{"policy", "d.user", "key", "d?user=alice", "action", "block", "reason", " "}},
		{"the end is &#34;soon&#34;", []string{"policy", "d.user", "key", "d?user=alice", "action", "block", "for", "soon"}},
		{"action is &#34;free&#34;; it must be raise, block, unblock or reset", []string{"policy", "d.user", "key", "d?user=alice", "action", "free"}},
		{"key is empty", []string{"policy", "d.user", "action", "block"}},
	} {
		d.act(422, c.want, c.fields...)
	}
	for query, want := range map[string]string{
		"kind=descriptors&client=edge+user=alice":          "&#34;edge&#34; is no domain of",
		"kind=descriptors&client=d+usr=alice":              "no rule of d is for usr=alice",
		"kind=descriptors&client=d":                        "must be a domain and entries",
		"kind=key&client=alice&policy=d.usr":               "did you mean d.user?",
		"kind=key&client=d%3Fuser%3Dalice&policy=d.user":   "nothing is counted",
		"kind=nothing&client=alice":                        "kind is &#34;nothing&#34;",
		"kind=descriptors&client=d+user=alice&policy=none": "&#34;none&#34; is no policy of",
	} {
		if _, text := d.request(http.MethodGet, query, nil, password); !strings.Contains(text, want) {
			t.Errorf("%s: %s; want %s", query, text, want)
		}
	}
	d.remains("alice", 2)
}

// Only a POST of an operator from the page itself changes anything.
func TestActionsNeedAnOperator(t *testing.T) {
	block := url.Values{"policy": {"d.user"}, "key": {"d?user=alice"}, "action": {"block"}, "reason": {"test"}, "for": {"1h"}}
	d := started(t, perYear, operators(t))
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	for _, c := range []struct {
		method, password string
		header           []string
		status           int
	}{
		{http.MethodPost, "", nil, 401},
		{http.MethodGet, "", nil, 401},
		{http.MethodPost, "wrong", nil, 401},
		{http.MethodPost, password, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{http.MethodPost, password, []string{"Sec-Fetch-Site", "same-site"}, 403},
		{http.MethodPost, password, []string{"Origin", "https://example.com"}, 403},
		{http.MethodPut, password, nil, 405},
		{http.MethodGet, password, nil, 200},
	} {
		if status, text := d.request(c.method, block.Encode(), block, c.password, c.header...); status != c.status {
			t.Errorf("%+v: %d %s", c, status, text)
		}
	}
	d.remains("alice", 2)
	for range 30 {
		d.request(http.MethodGet, "", nil, "guess")
	}
	if status, _ := d.request(http.MethodGet, "", nil, "guess"); status != http.StatusTooManyRequests {
		t.Errorf("after many guesses: %d, want 429", status)
	}

	off := started(t, perYear)
	off.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	if status, text := off.request(http.MethodPost, "", block, password); status != http.StatusMethodNotAllowed || !strings.Contains(text, "WEIR_OPERATORS_FILE must name a file") {
		t.Errorf("without operators: %d %s; want 405", status, text)
	}
	off.remains("alice", 2)
	if _, text := off.request(http.MethodGet, "kind=descriptors&client=d+user=alice", nil, ""); !strings.Contains(text, "WEIR_OPERATORS_FILE must name a file") || strings.Contains(text, `method="post"`) || !strings.Contains(text, "3 per 365d") {
		t.Errorf("without operators: %s; want the counts alone, and how to switch actions on", text)
	}
}

// With counts in memory, overrides are there, too.
func TestActionsInMemory(t *testing.T) {
	d := started(t, perYear, operators(t))
	for _, want := range []int{2, 1, 0, -1} {
		d.remains("alice", want)
	}
	alice := []string{"policy", "d.user", "key", "d?user=alice"}
	for _, step := range []struct {
		action string
		want   int
	}{{"raise", 6}, {"block", -1}, {"unblock", -1}, {"reset", 2}} {
		d.act(200, `role="status"`, append(alice, "action", step.action, "limits", "10 per 365d aligned")...)
		if got, err := d.ask("alice"); got != step.want || err != nil {
			t.Errorf("after %s %d remain, %v; want %d", step.action, got, err, step.want)
		}
	}
}

// A client of forward auth is raised, blocked and reset, too.
func TestActionsOnForwardAuth(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, level := range []string{"exact", "leased", "synced"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel() // its processes take their changes once a second
			server, addr := testserver.Redis(t), testserver.FreeAddr(t)
			file := filepath.Join(t.TempDir(), "weir.yaml")
			config := fmt.Sprintf("backend: redis\nredis: {shards: [{name: a, primary: '%s'}]}\npolicies: {core: {limits: [3 per 8760h aligned], consistency: %s}}\nforward_auth: {listen: '%s', trusted_proxies: [127.0.0.0/8], rules: [{charge: [core by ip]}]}\n", server.Addr, level, addr)
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			d := started(t, perYear, "WEIR_CONFIG="+file, operators(t))
			d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
			ask := func(status int, remaining string) {
				t.Helper()
				r, err := http.NewRequest(http.MethodGet, "http://"+addr+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				for name, value := range map[string]string{"Method": "GET", "Host": "example.com", "Uri": "/", "For": "2001:db8::7"} {
					r.Header.Set("X-Forwarded-"+name, value)
				}
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if got := resp.Header.Get("X-RateLimit-Remaining"); resp.StatusCode != status || got != remaining {
					t.Errorf("%d, %q remain; want %d, %q", resp.StatusCode, got, status, remaining)
				}
			}
			for _, remaining := range []string{"2", "1", "0"} {
				ask(200, remaining)
			}
			ask(429, "0")
			explained := func(wants ...string) {
				t.Helper()
				q := url.Values{"explain": {`{"args":["https://example.com/"],"ip":"2001:db8::7","method":"GET"}`}}
				_, text := d.request(http.MethodGet, q.Encode(), nil, password)
				for _, want := range append(wants, `"rule":"forward_auth.rules[0]"`) {
					if !strings.Contains(text, want) {
						t.Errorf("%s; want %s", text, want)
					}
				}
			}
			explained(`"refused":true`, `"retry_at":"`, `"limit":"3 per`, `"used":3`)
			client := []string{"policy", "core", "key", "ip:2001:db8::/64"}
			d.act(200, "are in force", append(client, "action", "raise", "limits", "10 per 8760h aligned")...)
			ask(200, "6")
			explained(`"refused":false`, `"limit":"10 per`, `"used":4`, `"owner":"dora"`)
			d.act(200, "is blocked", append(client, "action", "block")...)
			ask(429, "")
			d.act(200, "is removed", append(client, "action", "unblock")...)
			ask(429, "0")
			d.act(200, "is reset", append(client, "action", "reset")...)
			ask(200, "2")
			if _, text := d.request(http.MethodGet, "kind=address&client=2001:db8::9", nil, password); !strings.Contains(text, "ip:2001:db8::/64") || !strings.Contains(text, `<dd class="used">`) {
				t.Errorf("%s; want the count of the /64", text)
			}
			for address, want := range map[string]string{"2001:db8::/48": "each /64 of IPv6 has a count", "203.0.113.0/24": "each address of IPv4 has a count", "alice": "such as 203.0.113.7"} {
				if _, text := d.request(http.MethodGet, "kind=address&client="+address, nil, password); !strings.Contains(text, want) {
					t.Errorf("%s: %s; want %s", address, text, want)
				}
			}
			d.act(422, "did you mean ip:203.0.113.9?", "policy", "core", "key", "203.0.113.9", "action", "block")
		})
	}
}
