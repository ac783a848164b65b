package weir_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

var core = weir.MustPolicy("core: 3 per 1000h aligned")

// check takes from a Throttler of urls, and then from another one, which has the same counts
// if shared is set.
func check(t *testing.T, urls string, shared bool) {
	t.Helper()
	used := func(n int64) {
		t.Helper()
		th, err := weir.Open(urls, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"alice", "bob", "carol", "dave"} { // on each shard
			if d, err := th.Take(t.Context(), core.Charge(key)); err != nil || d.Limit(0).Used != n {
				t.Errorf("%s: used %d, error %v; want %d", key, d.Limit(0).Used, err, n)
			}
		}
		if err := errors.Join(th.Close(), th.Close()); err != nil {
			t.Error(err)
		}
	}
	used(1)
	if !shared {
		used(1)
		return
	}
	used(2)
}

func TestOpen(t *testing.T) {
	a, b := testserver.Redis(t), testserver.Redis(t)
	check(t, "memory:", false)
	check(t, "redis://"+a.Addr, true)
	check(t, "redis://"+a.Addr+"?prefix=staging:", true)
	check(t, "redis://"+a.Addr+"/1 \n redis://"+b.Addr+"/1", true)
	check(t, "memcached://"+testserver.Memcached(t).Addr, true)

	client := redis.NewClient(&redis.Options{Addr: a.Addr})
	defer client.Close()
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 8 {
		t.Errorf("the server has the keys %q, error %v; want 4 for each environment", keys, err)
	}
	for _, key := range keys {
		if !strings.HasPrefix(key, "weir:") && !strings.HasPrefix(key, "staging:weir:") {
			t.Errorf("a key is %q", key)
		}
	}
}

// A wrong URL is an error that says what would be right, and quotes nothing of it.
// dead receives the warning about a server.
type dead struct {
	observe.Nothing
	warned chan string
}

func (d dead) Warned(e observe.Warned) { d.warned <- e.Text }

// A server that does not answer is warned of before a request asks it. Close ends the call to one
// that hangs.
func TestOpenWarnsOfADeadServer(t *testing.T) {
	o := dead{warned: make(chan string, 1)}
	th, err := weir.Open("redis://127.0.0.1:1", &throttler.Options{Observer: o})
	if err != nil {
		t.Fatal(err)
	}
	if text := <-o.warned; !strings.Contains(text, "a server of weir.Open does not answer: ") || !strings.Contains(text, "127.0.0.1:1: connect: connection refused") {
		t.Errorf("the warning is %q", text)
	}
	if err := th.Close(); err != nil {
		t.Error(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and does not answer
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	th, err = weir.Open("redis://"+listener.Addr().String(), &throttler.Options{Observer: o})
	if err := errors.Join(err, th.Close()); err != nil {
		t.Error(err)
	}
	if len(o.warned) > 0 {
		t.Errorf("after Close: %q", <-o.warned)
	}
}

func TestWrongURLs(t *testing.T) {
	for urls, want := range map[string]string{
		"":                                "the URL is empty; it must begin with redis://",
		" \n ":                            "memory: for the memory of this process",
		"secret":                          "the URL's scheme is unknown; it must begin with redis://",
		"secret:6379":                     "the URL's scheme is unknown",
		"127.0.0.1:6379":                  "the URL's scheme is unknown",
		"postgres://u:secret@h/db":        "the URL's scheme is unknown",
		"http://h":                        "the URL's scheme is unknown",
		"redis:secret":                    "it must be redis://HOST:PORT",
		"redis://":                        "it must be redis://HOST:PORT",
		"redis://u:secret/x@h":            "percent-encoded",
		"redis://u:12?secret@h":           "the URL's query is wrong",
		"redis://u:12?prefix=secret@h x":  "URL 2 of 2: the URL's scheme is unknown",
		"redis://h/secret":                "it must be the number of a database",
		"redis://h?db=secret":             "the URL's query is wrong",
		"redis://h/3?cluster=true":        "DB is 3; it must be 0",
		"redis://u:secret@h1,h2:6379":     "the URL has several hosts; for a Cluster write",
		"redis://h1,redis://h2":           "a URL each, with spaces between them",
		"redis://h1 redis://h1:6379":      "URL 2 of 2 and URL 1 are one server",
		"redis://localhost redis://[::1]": "are one server",
		"redis://h redis://h/1":           "are one server",
		"redis://redis-a redis://Redis-A": "are one server",
		"redis://h:70000":                 "the URL's host is wrong; it must be a name or an address",
		"redis://h:0":                     "the URL's host is wrong",
		"redis://h:6379:6379":             "the URL's host is wrong",
		"redis://::1":                     "the URL's host is wrong",
		"redis://$REDIS_HOST:6379":        "the URL's host is wrong",
		"redis://h?addr=$X&cluster=true":  "the URL's host is wrong",
		"rediss://u:secret@h redis://h":   "are one server",
		"redis://h1 redis://h2 redis://h3?addr=h1&cluster=true":    "URL 3 of 3 and URL 1 are one server",
		"redis://s?master_name=m&addr=s2 redis://s2?master_name=m": "are one server",
		"redis://h memory:":                         "URL 2 of 2 is for memory, and the first for redis; shards must be servers of one kind",
		"memcached://h redis://h":                   "of one kind",
		"memory: memory:":                           "memory: is there twice",
		"memory://secret":                           "write memory: alone",
		"memory:?prefix=secret":                     "write memory: alone",
		"redis://h?prefix=":                         "the URL's prefix is wrong; it must be 1 to 100 printable",
		"redis://h?prefix={a}":                      "the URL's prefix is wrong",
		"redis://h?prefix=secret%20a":               "the URL's prefix is wrong",
		"redis://h1?prefix=secret: redis://h2":      "URL 2 of 2 has another prefix than the first",
		"memcached://":                              "the URL must be memcached://HOST:PORT",
		"memcached://u:secret@h":                    "without a user",
		"memcached://h/secret":                      "the URL must be memcached://HOST:PORT",
		"memcached://h1,h2":                         "the URL has several hosts",
		"unix://run/redis.sock":                     "it must be unix:///PATH",
		"unix:///run/redis.sock?secret=1":           "it must be unix:///PATH",
		"redis+sentinel://:secret@s:26379/mymaster": "the URL's scheme is unknown",
		"redis://h?master_name=a&cluster=true":      "the URL's query is wrong",
		strings.Repeat("redis://h ", 27):            "there are 27 URLs; there may be 26",
	} {
		th, err := weir.Open(urls, nil)
		if th != nil || !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: got %v, want ErrInvalid with %q, and no secret", urls, err, want)
		}
	}
	if _, err := weir.Open("memory:", &throttler.Options{ReceiptKey: []byte("")}); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "ReceiptKey has 0 bytes; it must have 16 or more") {
		t.Errorf("an empty receipt key: %v", err)
	}
}

func TestWrongWiring(t *testing.T) {
	th := weir.New()
	weir.Limit(th, core, weir.ClientIP("10.0.0.0/8", "127.0.0.1", "::1"))
	for want, wire := range map[string]func(){
		"the throttler is nil":                                 func() { weir.Limit(nil, core, weir.ClientIP()) },
		"policy is nil; it must be a policy":                   func() { weir.Limit(th, nil, weir.ClientIP()) },
		"a Key is the zero value; use ClientIP":                func() { weir.Limit(th, core, middleware.Key{}) },
		"two policies are named \"core\"":                      func() { weir.Limit(th, weir.MustPolicy("core: 4 per hour"), weir.ClientIP()) },
		"policy is \"60 per hour\", without a colon":           func() { weir.MustPolicy("60 per hour") },
		"trusted proxy is \"10.0.0\"; it must be an address":   func() { weir.ClientIP("10.0.0") },
		"trusted proxy is \"\"; it must be an address":         func() { weir.ClientIP("") },
		"TrustedProxies[0] is 0.0.0.0/0, which trusts so much": func() { weir.Limit(th, core, weir.ClientIP("0.0.0.0/0")) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("got %q, want a panic with %q", got, want)
				}
			}()
			wire()
		}()
	}
}

func TestLimitWarns(t *testing.T) {
	events := &events{warned: make(chan observe.Warned, 9)}
	th, err := weir.Open("memory:", &throttler.Options{Observer: events})
	if err != nil {
		t.Fatal(err)
	}
	weir.Limit(th, weir.MustPolicy("fast: 10 per second, 500 per minute"), weir.ClientIP())
	weir.Limit(th, weir.MustPolicy("slow: 10 per second, 600 per minute"), weir.ClientIP())
	if w := <-events.warned; w.Policy != "slow" || !strings.Contains(w.Text, "can never refuse") || len(events.warned) != 0 {
		t.Errorf("got %+v", w)
	}
}

// A dead server delays neither Open nor Close, and the observer of the options learns of it
// from the backend and the middleware.
func TestOneObserver(t *testing.T) {
	server := testserver.Redis(t)
	events := &events{failed: make(chan observe.Failed, 9), warned: make(chan observe.Warned, 9), checked: make(chan observe.Checked, 99)}
	th, err := weir.Open("redis://"+server.Addr, &throttler.Options{Observer: events})
	if err != nil {
		t.Fatal(err)
	}
	defer th.Close()
	if e := <-events.checked; e.Open {
		t.Errorf("the first check: %+v", e)
	}
	server.Kill()
	w := httptest.NewRecorder()
	limited := weir.Limit(th, core, weir.ClientIP())(http.NotFoundHandler())
	for len(events.failed) == 0 {
		limited.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	}
	if e := <-events.failed; e.Result != observe.ResultServed || e.Backend != "redisbackend" {
		t.Errorf("the middleware reports %+v", e)
	}
	for e := range events.checked {
		if e.Open {
			return
		}
	}
}

type events struct {
	observe.Nothing
	failed  chan observe.Failed
	warned  chan observe.Warned
	checked chan observe.Checked
}

func (e *events) Warned(w observe.Warned)   { e.warned <- w }
func (e *events) Failed(f observe.Failed)   { e.failed <- f }
func (e *events) Checked(c observe.Checked) { e.checked <- c }

// Each package that a first program imports fits on a screen.
func TestOneScreen(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, p := range []string{".", "./middleware", "./middleware/login", "./throttler", "./throttler/quota"} {
		out, err := exec.CommandContext(ctx, "go", "doc", p).CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(out), "\n"); lines > 60 {
			t.Errorf("go doc %s prints %d lines:\n%s", p, lines, out)
		}
	}
}
