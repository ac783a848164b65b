package login_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/middleware/login"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"

	"github.com/redis/go-redis/v9"
)

func policy(t testing.TB, text string) *throttler.Policy {
	t.Helper()
	p, err := quota.ParsePolicy(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// app is a login with the password "secret". Failures are answered 200, as many applications do.
type app struct {
	guard    *login.Guard
	throttle *throttler.Throttler
	handler  http.Handler
	guesses  atomic.Int64 // that reached the handler
	bodies   sync.Map     // read by the handler
	status   int          // of failures
}

func newApp(t testing.TB, name login.Name, o *login.Options) *app {
	t.Helper()
	a := &app{throttle: throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(time.Unix(1_900_000_000, 0))}), status: 200}
	var err error
	a.guard, err = login.New(a.throttle, policy(t, "login.account: 5 per 15 minutes"), name, policy(t, "login.address: 20 per hour"), middleware.ClientIP(nil), o)
	if err != nil {
		t.Fatal(err)
	}
	a.handler = a.guard.Limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.guesses.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		a.bodies.Store(string(body), true)
		switch {
		case strings.Contains(string(body), "secret"):
			if err := a.guard.Succeeded(r); err != nil {
				t.Error(err)
			}
		case strings.Contains(string(body), "panic"):
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(a.status)
		}
	}))
	return a
}

func (a *app) try(address, kind, body string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/login", strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	r.RemoteAddr = address + ":1"
	a.handler.ServeHTTP(w, r)
	return w
}

const (
	form = "application/x-www-form-urlencoded"
	js   = "application/json"
)

func encoded(account, password string) string {
	return url.Values{"account": {account}, "password": {password}}.Encode()
}

func TestParallelGuesses(t *testing.T) {
	a := newApp(t, login.Form("account"), nil)
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() { a.try(fmt.Sprintf("192.0.2.%d", i), form, encoded("alice", "guess")) })
	}
	running.Wait()
	if n := a.guesses.Load(); n != 5 {
		t.Errorf("%d guesses reached the handler, want 5", n)
	}
	for _, spelling := range []string{"Alice", " alice", "ALICE\t", "alıce", "\u2003alice"} { // dotless i is another letter: its upper case is I
		a.try("198.51.100.1", form, encoded(spelling, "guess"))
	}
	if n := a.guesses.Load(); n != 5 {
		t.Errorf("%d guesses with other spellings reached the handler, want 5", n)
	}
}

func TestSuccess(t *testing.T) {
	for _, status := range []int{200, 302, 401} {
		a := newApp(t, login.Form("account"), nil)
		a.status = status
		for range 4 {
			a.try("192.0.2.1", form, encoded("alice", "guess"))
		}
		for range 30 { // they use up nothing
			if w := a.try("192.0.2.1", form, encoded("Alice", "secret")); w.Code != 200 {
				t.Fatalf("a success is answered %d", w.Code)
			}
		}
		for i := range 6 {
			want := status
			if i == 5 {
				want = 429
			}
			if w := a.try("192.0.2.2", form, encoded("alice", "guess")); w.Code != want || w.Header().Get("X-RateLimit-Limit") != "" {
				t.Errorf("failure %d after the success: status %d, want %d; header %v", i+1, w.Code, want, w.Header())
			}
		}
		// The address keeps its four failures.
		for i := range 17 {
			want := status
			if i == 16 {
				want = 429
			}
			if w := a.try("192.0.2.1", form, encoded(fmt.Sprint("user", i), "guess")); w.Code != want {
				t.Errorf("status %d: failure %d from the address: status %d, want %d", status, i+5, w.Code, want)
			}
		}
		if err := a.guard.Clear(t.Context(), " ALICE "); err != nil {
			t.Fatal(err)
		}
		if w := a.try("192.0.2.3", form, encoded("alice", "guess")); w.Code != status {
			t.Errorf("after Clear: status %d, want %d", w.Code, status)
		}
	}
}

func TestOutcomes(t *testing.T) {
	for status, charged := range map[int]int{200: 5, 204: 5, 302: 5, 401: 5, 404: 5, 499: 5, 500: 9, 503: 9} {
		a := newApp(t, login.Form("account"), nil)
		a.status = status
		for range 9 {
			a.try("192.0.2.1", form, encoded("alice", "guess"))
		}
		if n := int(a.guesses.Load()); n != charged {
			t.Errorf("status %d: %d of 9 reached the handler, want %d", status, n, charged)
		}
	}
	a := newApp(t, login.Form("account"), &login.Options{Succeeded: func(_ *http.Request, status int, _ http.Header) bool { return status == 303 }})
	for i := range 40 {
		if a.status = 403; i%5 == 4 {
			a.status = 303
		}
		if w := a.try("192.0.2.1", form, encoded("alice", "guess")); w.Code != a.status && i < 20 {
			t.Errorf("attempt %d: status %d", i, w.Code)
		}
	}
	if n := a.guesses.Load(); n != 24 { // 20 failures from the address, and the successes between
		t.Errorf("by the status: %d reached the handler, want 24", n)
	}
}

// No body gives more guesses on one account than its quota, or a guess on no account.
func TestBodies(t *testing.T) {
	part := func(fields ...string) (kind, body string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for _, f := range fields {
			name, value, _ := strings.Cut(f, "=")
			if err := w.WriteField(name, value); err != nil {
				t.Fatal(err)
			}
		}
		_ = w.Close()
		return w.FormDataContentType(), b.String()
	}
	single, singleBody := part("account=alice", "password=x")
	double, doubleBody := part("account=decoy", "account=alice")
	for _, test := range []struct {
		name       login.Name
		kind, body string
		want       int
	}{
		{login.Form("account"), form, encoded("alice", "x"), 200},
		{login.Form("account"), single, singleBody, 200},
		{login.Form("account"), double, doubleBody, 400},
		{login.Form("account"), form, "account=decoy&account=alice", 400},
		{login.Form("account"), form, "account=decoy;account=alice", 400},
		{login.Form("account"), form, "account=&password=x", 400},
		{login.Form("account"), form, "account=%20%09", 400},
		{login.Form("account"), form, "password=x", 400},
		{login.Form("account"), form, "", 400},
		{login.Form("account"), js, `{"account":"alice"}`, 400},
		{login.Form("account"), form, "account=alice&pad=" + strings.Repeat("x", 64<<10), 413},
		{login.Form("account"), form, "account=" + strings.Repeat("x", 2<<10), 400},
		{login.JSON("account"), js, `{"account":"alice","password":"x"}`, 200},
		{login.JSON("account"), js, `{"password":{"account":"bob"},"ACCOUNT":"alice"}`, 200},
		{login.JSON("account"), js, `{"account":"decoy7","ACCOUNT":"alice"}`, 400},
		{login.JSON("account"), js, `{"account":"decoy","account":"alice"}`, 400},
		{login.JSON("task"), js, `{"task":"decoy","ta` + "\u017f" + `k":"alice"}`, 400}, // a long s is an s
		{login.JSON("account"), js, `{"account":"decoy","\u0061ccount":"alice"}`, 400},
		{login.JSON("account"), js, `{"account":"decoy"}{"account":"alice"}`, 400},
		{login.JSON("account"), js, `{"account":["alice"]}`, 400},
		{login.JSON("account"), js, `{"account":7}`, 400},
		{login.JSON("account"), js, `{"account":null}`, 400},
		{login.JSON("account"), js, `["account","alice"]`, 400},
		{login.JSON("account"), js, `{"account":"alice"`, 400},
		{login.JSON("account"), js, "{\"account\":\"al\xff\"}", 400},
		{login.JSON("account"), js, `{}`, 400},
		{login.JSON("account"), js, ``, 400},
		{login.JSON("account"), js, `{"account":"alice","pad":"` + strings.Repeat("x", 64<<10) + `"}`, 413},
	} {
		a := newApp(t, test.name, nil)
		w := a.try("192.0.2.1", test.kind, test.body)
		brief := test.body[:min(len(test.body), 60)]
		if w.Code != test.want {
			t.Errorf("%q: status %d, want %d", brief, w.Code, test.want)
		}
		if _, whole := a.bodies.Load(test.body); whole != (test.want == 200) {
			t.Errorf("%q: the handler has read it: %t", brief, whole)
		}
		for range 20 { // the address is charged in any case
			a.try("192.0.2.1", test.kind, test.body)
		}
		if w := a.try("192.0.2.1", test.kind, test.body); w.Code != 429 {
			t.Errorf("%q: status %d after 21 of them from an address, want 429", brief, w.Code)
		}
	}
	a := newApp(t, login.Form("account"), nil)
	r := httptest.NewRequest("POST", "/login?account=bob", strings.NewReader(encoded("alice", "x")))
	r.Header.Set("Content-Type", form)
	w := httptest.NewRecorder()
	if a.handler.ServeHTTP(w, r); w.Code != 400 {
		t.Errorf("an account in the query and the body: status %d, want 400", w.Code)
	}
	w = httptest.NewRecorder()
	if a.handler.ServeHTTP(w, httptest.NewRequest("GET", "/login?account=alice&password=x", nil)); w.Code != 400 || a.guesses.Load() != 0 {
		t.Errorf("a GET: status %d, want 400", w.Code)
	}
}

// While the store is down, there are no guesses. If it fails after the charge, a login goes on, and the
// error says so.
func TestOutage(t *testing.T) {
	server := testserver.Redis(t)
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	backend, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	th := throttler.New(backend, &throttler.Options{Observer: weirlog.New(slog.New(slog.DiscardHandler), nil)})
	guard, err := login.New(th, policy(t, "login.account: 5 per 1000h aligned"), login.Form("account"), policy(t, "login.address: 20 per 1000h aligned"), middleware.ClientIP(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	guesses, succeeded := 0, error(nil)
	h := guard.Limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		guesses++
		server.Kill()
		succeeded = guard.Succeeded(r)
	}))
	for i, want := range []int{200, 503, 503} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/login", strings.NewReader(encoded("alice", "x")))
		r.Header.Set("Content-Type", form)
		if h.ServeHTTP(w, r); w.Code != want || guesses != 1 || want == 503 && w.Header().Get("Retry-After") == "" {
			t.Errorf("request %d: status %d, want %d; %d guesses; header %v", i, w.Code, want, guesses, w.Header())
		}
	}
	if !errors.Is(succeeded, throttler.ErrUnavailable) {
		t.Errorf("Succeeded: got %v, want ErrUnavailable", succeeded)
	}
}

func TestMistakes(t *testing.T) {
	th := throttler.New(memorybackend.NewDefault(), nil)
	account, address, ip := policy(t, "a: 5 per hour"), policy(t, "b: 20 per hour"), middleware.ClientIP(nil)
	for want, make := range map[string]func() (*login.Guard, error){
		"name is nil; it must find": func() (*login.Guard, error) { return login.New(th, account, nil, address, ip, nil) },
		"policy is nil":             func() (*login.Guard, error) { return login.New(th, nil, login.Form("x"), address, ip, nil) },
		"policy is nil; it must be": func() (*login.Guard, error) { return login.New(th, account, login.Form("x"), nil, ip, nil) },
		"are both named \"a\"": func() (*login.Guard, error) {
			return login.New(th, account, login.Form("x"), account, ip, nil)
		},
		"a Key is the zero value": func() (*login.Guard, error) {
			return login.New(th, account, login.Form("x"), address, middleware.Key{}, nil)
		},
		"policy \"c\" has a limit in-flight": func() (*login.Guard, error) {
			return login.New(th, policy(t, "c: 5 per 30s in-flight"), login.Form("x"), address, ip, nil)
		},
		"policy \"b\", of an address, allows 20 per 1h0m0s (fixed-window), and \"a\", of an account, 30 per 15m0s": func() (*login.Guard, error) {
			return login.New(th, policy(t, "a: 9 per day, 30 per 15m"), login.Form("x"), address, ip, nil)
		},
		"\"b\", of an address, allows 3 per 1h0m0s (token-bucket), and \"a\"": func() (*login.Guard, error) {
			return login.New(th, account, login.Form("x"), policy(t, "b: 3 per hour token-bucket burst 1"), ip, nil)
		},
	} {
		if _, err := make(); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ErrInvalid with %q", err, want)
		}
	}
	for _, limits := range []string{"5 per hour", "3 per minute", "3 per hour token-bucket burst 20", "20 per day"} {
		if _, err := login.New(throttler.New(memorybackend.NewDefault(), nil), account, login.Form("x"), policy(t, "b: "+limits), ip, nil); err != nil {
			t.Errorf("%s of an address: %v", limits, err)
		}
	}
	g, err := login.New(th, account, login.Form("x"), address, ip, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Succeeded(httptest.NewRequest("POST", "/", nil)); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("Succeeded of a request that g did not see: %v", err)
	}
	if err := g.Clear(t.Context(), " "); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("Clear of no account: %v", err)
	}
}
