package redisbackend_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
)

// tlsOf returns the configuration of a client that server admits.
func tlsOf(t *testing.T, server *testserver.RedisTLSServer, version uint16) *tls.Config {
	pem, err := os.ReadFile(server.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	pair, err := tls.LoadX509KeyPair(server.CertFile, server.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: version, MaxVersion: version}
}

// transports returns the options of clients of servers by all kinds of connections.
func transports(t *testing.T) map[string]redis.UniversalOptions {
	withTLS := testserver.RedisTLS(t)
	socket := filepath.Join(t.TempDir(), "redis.sock")
	plain := testserver.Redis(t, "--unixsocket", socket)
	return map[string]redis.UniversalOptions{
		"TCP":         {Addrs: []string{plain.Addr}},
		"unix socket": {Addrs: []string{socket}},
		"TLS 1.2":     {Addrs: []string{withTLS.Addr}, TLSConfig: tlsOf(t, withTLS, tls.VersionTLS12)},
		"TLS 1.3":     {Addrs: []string{withTLS.Addr}, TLSConfig: tlsOf(t, withTLS, tls.VersionTLS13)},
	}
}

// together makes n takes at once, and returns the number of errors.
func (b *bench) together(t *testing.T, n int) int64 {
	var failed atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if _, err := b.Take(t.Context(), loginPolicies[0].Charge("alice")); err != nil {
				failed.Add(1)
				t.Log(err)
			}
		})
	}
	all.Wait()
	return failed.Load()
}

// Connections that the server closed while they were idle cost no decision.
func TestConnectionsClosedWhileIdle(t *testing.T) {
	for name, o := range transports(t) {
		t.Run(name, func(t *testing.T) {
			c := connect(t, &o).(*redis.Client)
			b, e := newObserved(t, c, redisbackend.Options{})
			b.backend.WithoutChecks()
			for round := range 3 {
				if n := b.together(t, 256); n > 0 {
					t.Fatalf("round %d: %d of 256 takes failed", round, n)
				}
				// Of more connections than one Get looks at.
				if err := open(t.Context(), c, 8); err != nil {
					t.Fatal(err)
				}
				admin := connect(t, &o).(*redis.Client)
				if err := admin.ClientKillByFilter(t.Context(), "type", "normal").Err(); err != nil {
					t.Fatal(err)
				}
				eventually(t, "all connections to be closed", func() bool {
					return strings.Count(admin.ClientList(t.Context()).Val(), "\n") == 1
				})
				_ = admin.Close()
				eventually(t, "this process's kernel to see it", func() bool { return established(t, o.Addrs[0]) == 0 })
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, s := range e.sent {
				if s.Err != nil && !strings.Contains(s.Err.Error(), "NOSCRIPT") {
					t.Errorf("a round trip failed: %v", s.Err)
				}
			}
		})
	}
}

// established returns the number of TCP connections to addr that are open on both sides, on
// Linux: a busy kernel may deliver the end of a connection later than the server has closed it.
func established(t *testing.T, addr string) int {
	table, err := os.ReadFile("/proc/net/tcp")
	_, port, ok := strings.Cut(addr, ":")
	if err != nil || !ok {
		return 0
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[2], fmt.Sprintf(":%04X", number)) && f[3] == "01" {
			count++
		}
	}
	return count
}

func open(ctx context.Context, c *redis.Client, n int) error {
	var all []*redis.Conn
	for range n {
		conn := c.Conn()
		all = append(all, conn)
		if err := conn.Ping(ctx).Err(); err != nil {
			return err
		}
	}
	for _, conn := range all {
		if err := conn.Close(); err != nil {
			return err
		}
	}
	return nil
}

// A connection with TLS 1.3 that holds session tickets, and no more, is used.
func TestSessionTickets(t *testing.T) {
	server := testserver.RedisTLS(t)
	var dials atomic.Int64
	dialer := &tls.Dialer{Config: tlsOf(t, server, tls.VersionTLS13)}
	c := connect(t, &redis.UniversalOptions{
		Addrs: []string{server.Addr}, MinIdleConns: 4, PoolSize: 4,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			dials.Add(1)
			return conn, err
		},
	}).(*redis.Client)
	eventually(t, "the idle connections", func() bool { return c.PoolStats().IdleConns == 4 })
	b, _ := newObserved(t, c, redisbackend.Options{})
	b.backend.WithoutChecks()
	for range 20 {
		if n := b.together(t, 8); n > 0 {
			t.Fatalf("%d takes failed", n)
		}
	}
	if n := dials.Load(); n != 4 {
		t.Errorf("%d connections were made, want 4", n)
	}
}

// A proxy that resets idle connections costs no decision.
func TestConnectionsResetWhileIdle(t *testing.T) {
	server := testserver.RedisTLS(t)
	var mu sync.Mutex
	var sockets []*net.TCPConn
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	go func() {
		for {
			client, err := proxy.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server.Addr)
			if err != nil {
				_ = client.Close()
				return
			}
			mu.Lock()
			sockets = append(sockets, client.(*net.TCPConn))
			mu.Unlock()
			go func() { _, _ = upstream.(*net.TCPConn).ReadFrom(client); _ = upstream.Close() }()
			go func() { _, _ = client.(*net.TCPConn).ReadFrom(upstream); _ = client.Close() }()
		}
	}()
	c := connect(t, &redis.UniversalOptions{Addrs: []string{proxy.Addr().String()}, TLSConfig: tlsOf(t, server, tls.VersionTLS13)}).(*redis.Client)
	b, _ := newObserved(t, c, redisbackend.Options{})
	b.backend.WithoutChecks()
	for round := range 3 {
		if n := b.together(t, 256); n > 0 {
			t.Fatalf("round %d: %d of 256 takes failed", round, n)
		}
		mu.Lock()
		for _, s := range sockets {
			_ = s.SetLinger(0) // so that Close resets
			_ = s.Close()
		}
		sockets = nil
		mu.Unlock()
	}
}

// A decision waits for its connection longer than for the server's reply.
func TestConnectingTakesLong(t *testing.T) {
	server := protected(t)
	c := connect(t, &redis.UniversalOptions{
		Addrs: []string{server.Addr}, Password: "secret", DB: 1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			time.Sleep(80 * time.Millisecond)
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	b, _ := newObserved(t, c, redisbackend.Options{})
	b.backend.WithoutChecks()
	if _, err := b.WithServerTime(50*time.Millisecond).Take(t.Context(), loginPolicies[0].Charge("alice")); err != nil {
		t.Error(err)
	}
	// A caller's own deadline ends the wait.
	_ = c.(*redis.Client).Do(t.Context(), "client", "kill", "type", "normal", "skipme", "no").Err()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.Take(ctx, loginPolicies[0].Charge("alice")); err == nil {
		t.Error("a take without time to connect succeeded")
	}
	if b.backend.Open() {
		t.Error("the breaker opened")
	}
}
