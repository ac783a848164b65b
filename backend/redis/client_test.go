package redisbackend_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

func TestClientErrors(t *testing.T) {
	for _, test := range []struct {
		options *redis.UniversalOptions
		want    string
	}{
		{nil, "Addrs is empty"},
		{&redis.UniversalOptions{MasterName: "a"}, "Addrs is empty"},
		{&redis.UniversalOptions{Addrs: []string{"a:1"}, MasterName: "a", RouteRandomly: true}, `MasterName is "a", with IsClusterMode, ReadOnly, RouteByLatency or RouteRandomly`},
		{&redis.UniversalOptions{Addrs: []string{"a:1"}, MasterName: "a", ReadOnly: true}, `a replica needs a client of its own`},
		{&redis.UniversalOptions{Addrs: []string{"a:1", "b:1"}, DB: 2}, "DB is 2; it must be 0"},
	} {
		if _, err := redisbackend.NewClient(test.options); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want ErrInvalid with %q", err, test.want)
		}
	}
}

func TestURLs(t *testing.T) {
	withTLS := &tls.Config{MinVersion: tls.VersionTLS12}
	for text, want := range map[string]*redis.UniversalOptions{
		"redis://localhost":                      {Addrs: []string{"localhost:6379"}},
		"redis://[::1]:7000/":                    {Addrs: []string{"[::1]:7000"}},
		"rediss://weir:se%2Fcret@redis.test/3":   {Addrs: []string{"redis.test:6379"}, Username: "weir", Password: "se/cret", DB: 3, TLSConfig: withTLS},
		"rediss://weir@redis.test:1":             {Addrs: []string{"redis.test:1"}, Username: "weir", TLSConfig: withTLS},
		"redis://:secret@a:1":                    {Addrs: []string{"a:1"}, Password: "secret"},
		"redis://a:1?addr=b:2&addr=c":            {Addrs: []string{"a:1", "b:2", "c:6379"}},
		"redis://a?cluster=true":                 {Addrs: []string{"a:6379"}, IsClusterMode: true},
		"redis://a/1?master_name=m&addr=[::1]:2": {Addrs: []string{"a:26379", "[::1]:2"}, MasterName: "m", DB: 1},
		"unix:///run/redis.sock":                 {Addrs: []string{"/run/redis.sock"}},
		"unix://u:p@/run/redis.sock?db=2":        {Addrs: []string{"/run/redis.sock"}, Username: "u", Password: "p", DB: 2},
	} {
		if got, err := redisbackend.ParseURL(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, error %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                                 "the URL cannot be read",
		"127.0.0.1:6379":                   "the URL cannot be read",
		"redis:///1":                       "the URL cannot be read",
		"redis://a:x":                      "the URL cannot be read",
		"redis://weir:secret/x@a:1":        "the URL cannot be read",
		"redis://weir:1/secret@a:1":        "the URL's path is no number",
		"redis://weir:1?secret@a:1":        "the URL's query is wrong",
		"redis://weir:1#secret@a:1":        "the URL cannot be read",
		"secret://a:1":                     "the URL's scheme is unknown",
		"redis://a:1?db=secret":            "the URL's query is wrong",
		"redis://a:1?cluster=secret":       "the URL's query is wrong",
		"redis://a:1?addr=secret@b:1":      "the URL's query is wrong",
		"redis://a:1?addr=":                "the URL's host is wrong",
		"redis://a:1?master_name=":         "the URL's query is wrong",
		"unix://run/secret.sock":           "the URL of a socket is wrong",
		"unix:secret":                      "the URL of a socket is wrong",
		"unix:///a?db=secret":              "the URL of a socket is wrong",
		"unix:///a?secret=1":               "the URL of a socket is wrong",
		"redis://a:1?cluster=true;secret=": "the URL's query is wrong",
	} {
		_, err := redisbackend.ParseURL(text)
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want ErrInvalid with %q, and no part of the URL", text, err, want)
		}
	}
}

// By itself, go-redis does not dial for a second after as many failed dials as its pool has
// connections.
func TestServerIsBackAtOnce(t *testing.T) {
	server := testserver.Redis(t)
	c := connect(t, &redis.UniversalOptions{Addrs: []string{server.Addr}, PoolSize: 5})
	server.Kill()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if err := c.Ping(t.Context()).Err(); err == nil || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("killed: got %v, want that the connection is refused", err)
			}
		})
	}
	all.Wait()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Errorf("back, but: %v", err)
	}
}

func TestClientTLS(t *testing.T) {
	server := testserver.RedisTLS(t)
	pair, err := tls.LoadX509KeyPair(server.CertFile, server.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(server.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	config := func(name string, roots *x509.CertPool, pairs ...tls.Certificate) *tls.Config {
		return &tls.Config{ServerName: name, RootCAs: roots, Certificates: pairs, MinVersion: tls.VersionTLS12}
	}
	admin := patient(server.Addr)
	admin.TLSConfig = config("", roots, pair)
	if err := connect(t, admin).ACLSetUser(t.Context(), "weir", "on", ">secret", "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		config   *tls.Config
		password string
		want     string // in the error
	}{
		"right":          {config("", roots, pair), "secret", ""},
		"right, by name": {config(testserver.ServerName, roots, pair), "secret", ""},
		"another name":   {config("other.test", roots, pair), "secret", "not other.test"},
		"unknown CA":     {config("", nil, pair), "secret", "unknown authority"},
		"no certificate": {config("", roots), "secret", ""}, // with TLS 1.3 the server hangs up later
		"wrong password": {config("", roots, pair), "guess", "WRONGPASS"},
		"no TLS":         {nil, "secret", ""}, // the server hangs up, with various errors
	} {
		o := patient(server.Addr)
		o.TLSConfig, o.Username, o.Password = test.config, "weir", test.password
		b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: connect(t, o)}}, nil)
		d, err := throttler.New(b, nil).Take(t.Context(), policy("core", perHour(5)).Charge("alice"))
		switch {
		case strings.HasPrefix(name, "right"):
			if err != nil || !d.Allowed {
				t.Errorf("%s: allowed %v, error %v", name, d.Allowed, err)
			}
		case !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: got %v, want ErrUnavailable with %q", name, err, test.want)
		}
	}
}

// A handshake ends with its context if a server accepts connections and never replies.
func TestHandshakeEndsWithContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	o := patient(listener.Addr().String())
	o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	c := connect(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := c.Ping(ctx).Err(); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: %v; want an error at the deadline of 50 ms", time.Since(began), err)
	}
}

// By itself, go-redis 9.22 does not close a connection whose first command failed.
func TestHungServerCostsNoConnections(t *testing.T) {
	server := testserver.Redis(t)
	server.Pause()
	defer server.Resume()
	var dialed, open atomic.Int64
	c := connect(t, &redis.UniversalOptions{Addrs: []string{server.Addr}, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		dialed.Add(1)
		open.Add(1)
		return closing{conn, &open}, nil
	}})
	ping := func(deadline time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		if err := c.Ping(ctx).Err(); err == nil {
			t.Error("a paused server answered")
		}
	}
	for range 20 {
		ping(20 * time.Millisecond)
	}
	// A connection that was made too late for its caller, as all may be on a busy machine,
	// waits for the next call.
	eventually(t, "the connections to be closed", func() bool {
		if open.Load() > 2 {
			ping(200 * time.Millisecond)
		}
		return open.Load() <= 2
	})
	if n := dialed.Load(); n < 5 {
		t.Errorf("%d connections were made: the test tests nothing", n)
	}
}

// Nor does it close one whose first command was not written before its deadline.
func TestUnusedConnectionsAreClosed(t *testing.T) {
	server := testserver.Redis(t)
	var dialed, open atomic.Int64
	c := connect(t, &redis.UniversalOptions{Addrs: []string{server.Addr}, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		dialed.Add(1)
		open.Add(1)
		return late{closing{conn, &open}}, nil
	}})
	for range 10 {
		if err := c.Ping(t.Context()).Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v, want os.ErrDeadlineExceeded", err)
		}
	}
	eventually(t, "the connections to be closed", func() bool { return open.Load() == 0 })
	if dialed.Load() < 10 {
		t.Errorf("%d connections were made, want 10", dialed.Load())
	}
}

// late is a connection whose deadline has passed.
type late struct{ net.Conn }

func (late) Write([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// closing is a connection that decrements open when it is closed.
type closing struct {
	net.Conn
	open *atomic.Int64
}

func (c closing) Close() error {
	if err := c.Conn.Close(); err != nil {
		return err // closed before
	}
	c.open.Add(-1)
	return nil
}

// lookups counts the tests' DNS queries.
var lookups atomic.Int64

// noDNS is the resolver of the tests. It resolves only the names in /etc/hosts.
var noDNS = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	lookups.Add(1)
	return nil, errors.New("there is no DNS here")
}}

// Only a client's Dialer looks up names: a new client does not, nor does a probe, which a DNS
// outage would delay.
func TestClientsLookUpNoNames(t *testing.T) {
	server := testserver.Redis(t)
	before := lookups.Load()
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Addr)
	}
	for name, o := range map[string]*redis.UniversalOptions{
		"server":   {Addrs: []string{"redis.test:6379"}},
		"cluster":  {Addrs: []string{"redis.test:6379"}, IsClusterMode: true},
		"Sentinel": {Addrs: []string{"sentinel.test:6379"}, MasterName: "m"},
	} {
		o.Dialer = dial
		b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: connect(t, o)}}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := throttler.New(b, nil).Take(ctx, policy("core", perHour(10)).Charge("alice"))
		cancel()
		if (err == nil) != (name == "server") { // the server is neither a cluster nor a Sentinel
			t.Errorf("%s: a take: %v", name, err)
		}
		_ = b.Probe(t.Context())
		if n := lookups.Load() - before; n > 0 {
			t.Errorf("%s: %d names were looked up, want none", name, n)
		}
	}
}
