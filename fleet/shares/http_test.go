package shares

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/fleet/shares/internal/division"
	"github.com/weir-go/weir/throttler"
)

var testKey = []byte("0123456789abcdef0123456789abcdef")

// peer is a member that notes what it receives, and replies with it.
type peer struct {
	*HTTP
	addr string

	mu       sync.Mutex
	received []string
}

func newPeer(t *testing.T, key []byte, config *tls.Config) *peer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{addr: listener.Addr().String()}
	if p.HTTP, err = NewHTTP(p.addr, key, config); err != nil {
		t.Fatal(err)
	}
	// A busy machine may need more than callTimeout for a large message. What keeps
	// strangers out, ReadHeaderTimeout, stays.
	transport := p.client.Transport.(*http.Transport)
	transport.TLSHandshakeTimeout, transport.ResponseHeaderTimeout, p.client.Timeout = time.Minute, time.Minute, time.Minute
	p.server.ReadTimeout, p.server.WriteTimeout = time.Minute, time.Minute
	p.Serve(listener, func(_ context.Context, message []byte) ([]byte, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.received = append(p.received, string(message))
		if string(message) == "nonsense" {
			return nil, errors.New("that is no message")
		}
		return append([]byte("re: "), message...), nil
	})
	t.Cleanup(p.Close)
	return p
}

// got returns what was received since the last call.
func (p *peer) got() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.received = nil }()
	return p.received
}

func (p *peer) mustSend(t *testing.T, to, message string) {
	t.Helper()
	reply, err := p.Send(t.Context(), to, []byte(message))
	if err != nil || string(reply) != "re: "+message {
		t.Fatalf("Send: %q, %v; want a reply to %q", reply, err, message)
	}
}

func TestHTTP(t *testing.T) {
	a, b := newPeer(t, testKey, nil), newPeer(t, testKey, nil)
	for i := range 5 {
		a.mustSend(t, b.addr, fmt.Sprint("message ", i))
		b.mustSend(t, a.addr, fmt.Sprint("message ", i))
	}
	a.mustSend(t, b.addr, "")
	a.mustSend(t, b.addr, strings.Repeat("x", division.MaxMessage-len("re: ")))
	if n := len(b.got()); n != 7 {
		t.Errorf("%d messages were received; want 7", n)
	}
	_, err := a.Send(t.Context(), b.addr, []byte("nonsense"))
	var reply *ReplyError
	if !errors.As(err, &reply) || reply.Text != "that is no message" || reply.Member != b.addr {
		t.Errorf("Send: %v; want a *ReplyError with what the member says", err)
	}
	if _, err := a.Send(t.Context(), b.addr, make([]byte, division.MaxMessage+1)); err == nil {
		t.Error("a message above MaxMessage was sent")
	}
	if _, err := a.Send(t.Context(), "127.0.0.1:1", []byte("x")); err == nil || errors.As(err, &reply) {
		t.Errorf("Send to no member: %v; want an error of the network", err)
	}
}

// A member that has started again, or has not been sent to for long, has a challenge that
// a sender does not know. Its message arrives all the same, and once.
func TestHTTPLearnsChallenges(t *testing.T) {
	a, b := newPeer(t, testKey, nil), newPeer(t, testKey, nil)
	a.mustSend(t, b.addr, "before")
	b.challenges.mu.Lock()
	b.challenges.since = time.Now().Add(-time.Hour)
	b.challenges.mu.Unlock()
	a.mustSend(t, b.addr, "after")
	if got := b.got(); len(got) != 2 {
		t.Errorf("%q were received; want 2 messages", got)
	}
	for range 3 { // its body is not read before the challenge is known
		c := newPeer(t, testKey, nil)
		c.mustSend(t, b.addr, strings.Repeat("x", 1<<20)) // more than a server reads after its reply
	}
}

// wiretap is a relay between members that shows, and may change, what passes.
type wiretap struct {
	addr    string
	request func(r *http.Request, body []byte) []byte
	reply   func(w *http.Response, body []byte) []byte
}

func newWiretap(t *testing.T, to string) *wiretap {
	tap := &wiretap{
		request: func(_ *http.Request, body []byte) []byte { return body },
		reply:   func(_ *http.Response, body []byte) []byte { return body },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status, header, reply, err := tap.pass(to, r, body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		for name, values := range header {
			w.Header()[name] = values
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(reply)))
		w.WriteHeader(status)
		_, _ = w.Write(reply)
	}))
	t.Cleanup(server.Close)
	tap.addr = server.Listener.Addr().String()
	return tap
}

func (tap *wiretap) pass(to string, r *http.Request, body []byte) (status int, header http.Header, reply []byte, err error) {
	passed := r.Clone(r.Context())
	passed.RequestURI, passed.URL.Scheme, passed.URL.Host = "", "http", to
	body = tap.request(passed, body)
	passed.Body, passed.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	client := &http.Transport{DisableKeepAlives: true}
	w, err := client.RoundTrip(passed)
	if err != nil {
		return 0, nil, nil, err
	}
	defer w.Body.Close()
	reply, err = io.ReadAll(w.Body)
	return w.StatusCode, w.Header, tap.reply(w, reply), err
}

// A member of the network without the key changes nothing, whatever it makes, changes,
// repeats or redirects.
func TestHTTPStrangers(t *testing.T) {
	b := newPeer(t, testKey, nil)
	tap := newWiretap(t, b.addr)
	// a knows b by the tap's address, and b is known by it.
	b.self = tap.addr
	a := newPeer(t, testKey, nil)
	a.mustSend(t, tap.addr, "hello")
	b.got()

	refused := func(what string) {
		t.Helper()
		if reply, err := a.Send(t.Context(), tap.addr, []byte("move all units")); err == nil {
			t.Errorf("%s: the reply is %q; want an error", what, reply)
		}
		if got := b.got(); len(got) > 0 {
			t.Errorf("%s: %q was received; want nothing", what, got)
		}
		tap.request = func(_ *http.Request, body []byte) []byte { return body }
	}
	for _, header := range []string{fromHeader, toHeader, challengeHeader, nonceHeader, bodyHeader, sealHeader} {
		tap.request = func(r *http.Request, body []byte) []byte { r.Header.Set(header, r.Header.Get(header)+"0"); return body }
		refused("with another " + header)
		tap.request = func(r *http.Request, body []byte) []byte { r.Header.Del(header); return body }
		refused("without " + header)
	}
	tap.request = func(r *http.Request, body []byte) []byte { r.URL.Path = "/"; return body }
	refused("to another path")
	tap.request = func(r *http.Request, body []byte) []byte { r.Method = http.MethodPut; return body }
	refused("by another method")
	tap.request = func(_ *http.Request, body []byte) []byte { return append(body, ' ') }
	refused("with a longer body")
	tap.request = func(_ *http.Request, body []byte) []byte { return body[1:] }
	refused("with a shorter body")
	tap.request = func(r *http.Request, _ []byte) []byte {
		body := []byte("other")
		r.Header.Set(bodyHeader, hashOf(body))
		return body
	}
	refused("with another body and its hash")
	tap.request = func(r *http.Request, body []byte) []byte {
		r.Header.Set(sealHeader, (&HTTP{key: []byte("another key, of 32 bytes or more")}).sealOf(r))
		return body
	}
	refused("sealed with another key")

	wrong := newPeer(t, []byte("another key, of 32 bytes or more"), nil)
	if _, err := wrong.Send(t.Context(), tap.addr, []byte("x")); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("Send with another key: %v; want the status 401", err)
	}
	if got := b.got(); len(got) > 0 {
		t.Errorf("%q was received from a member with another key", got)
	}
}

// A message that comes again is not obeyed again: at once, after the next challenge, or
// at another member.
func TestHTTPReplays(t *testing.T) {
	b := newPeer(t, testKey, nil)
	tap := newWiretap(t, b.addr)
	b.self = tap.addr
	a := newPeer(t, testKey, nil)
	a.mustSend(t, tap.addr, "hello")
	var recorded *http.Request
	var recordedBody []byte
	tap.request = func(r *http.Request, body []byte) []byte {
		recorded, recordedBody = r.Clone(context.WithoutCancel(r.Context())), bytes.Clone(body)
		return body
	}
	a.mustSend(t, tap.addr, "move all units")
	tap.request = func(_ *http.Request, body []byte) []byte { return body }
	b.got()

	other := newPeer(t, testKey, nil)
	replay := func(what, to string) {
		t.Helper()
		status, _, _, err := tap.pass(to, recorded, recordedBody)
		if err != nil {
			t.Fatal(err)
		}
		if got := append(b.got(), other.got()...); len(got) > 0 || status == http.StatusOK || to == other.addr && status != http.StatusUnauthorized {
			t.Errorf("%s: status %d, and %q was received; want nothing", what, status, got)
		}
	}
	replay("again", b.addr)
	replay("to another member", other.addr)
	for _, age := range []time.Duration{challengeEvery + time.Second, challengeEvery + time.Second, 3 * challengeEvery} {
		b.challenges.mu.Lock()
		b.challenges.since = time.Now().Add(-age)
		b.challenges.mu.Unlock()
		replay(fmt.Sprint("a challenge later, after ", age), b.addr)
	}
	b.challenges = challenges{every: challengeEvery} // it has started again
	replay("after a restart", b.addr)
}

// A reply that is changed, or belongs to another message, is an error.
func TestHTTPReplies(t *testing.T) {
	b := newPeer(t, testKey, nil)
	tap := newWiretap(t, b.addr)
	b.self = tap.addr
	a := newPeer(t, testKey, nil)
	var recorded *http.Response
	var recordedBody []byte
	tap.reply = func(w *http.Response, body []byte) []byte { recorded, recordedBody = w, body; return body }
	a.mustSend(t, tap.addr, "hello")
	a.mustSend(t, tap.addr, "hello")
	for what, reply := range map[string]func(w *http.Response, body []byte) []byte{
		"changed":           func(_ *http.Response, body []byte) []byte { return append(body, '!') },
		"of another status": func(w *http.Response, body []byte) []byte { w.StatusCode = http.StatusConflict; return body },
		"without a seal":    func(w *http.Response, body []byte) []byte { w.Header.Del(sealHeader); return body },
		"of another message": func(w *http.Response, _ []byte) []byte {
			w.Header.Set(sealHeader, recorded.Header.Get(sealHeader))
			return recordedBody
		},
		"huge": func(*http.Response, []byte) []byte { return make([]byte, 2*division.MaxMessage) },
		"to look elsewhere": func(w *http.Response, body []byte) []byte {
			w.StatusCode = http.StatusTemporaryRedirect
			w.Header.Set("Location", "http://"+b.addr+path)
			return body
		},
	} {
		tap.reply = reply
		if got, err := a.Send(t.Context(), tap.addr, []byte("hello")); err == nil || len(err.Error()) > 300 {
			t.Errorf("a reply %s: %.40q, %v; want a short error", what, got, err)
		}
	}
}

// Bodies of strangers are not read, and a stranger that sends slowly, or nothing, is hung
// up on. Meanwhile members are served.
func TestHTTPSlowStrangers(t *testing.T) {
	a, b := newPeer(t, testKey, nil), newPeer(t, testKey, nil)
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: b\r\nContent-Length: 1000000000\r\n%s: %s\r\n\r\n", path, toHeader, b.addr)
	w, err := http.ReadResponse(bufio.NewReader(conn), nil) // with none of the body sent
	if err != nil || w.StatusCode != http.StatusUnauthorized || !w.Close {
		t.Errorf("to a body of a gigabyte without a seal: %v, %v; want 401, and the end", w, err)
	}

	const slow = 20
	ended := make(chan time.Duration, slow)
	for range slow {
		conn, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: b\r\nX-Slow: ", path)
		start := time.Now()
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			ended <- time.Since(start)
		}()
	}
	a.mustSend(t, b.addr, "hello")
	for range slow {
		if took := <-ended; took > 10*callTimeout { // a busy machine
			t.Errorf("a stranger was listened to for %v; want some %v", took, callTimeout)
		}
	}
}

// Connections of strangers, however many, keep no member out: the oldest of them are
// closed. The connection of a member is not.
func TestHTTPBoundsConnections(t *testing.T) {
	a, b := newPeer(t, testKey, nil), newPeer(t, testKey, nil)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first := dial()
	for range maxStrangers + 20 {
		dial()
	}
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("the oldest of too many connections is open")
	}
	a.mustSend(t, b.addr, "hello")
	first = dial()
	for range 2 * maxStrangers {
		dial()
	}
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("the oldest of too many connections is open")
	}
	b.strangers.mu.Lock()
	if n := len(b.strangers.all); n > maxStrangers {
		t.Errorf("%d connections of strangers are open; want at most %d", n, maxStrangers)
	}
	b.strangers.mu.Unlock()
	// Another connection would be a stranger's until its first message.
	a.client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("the member's connection was closed")
	}
	a.mustSend(t, b.addr, "hello again")
}

// What a member said once makes no connection a member's, when a stranger says it again.
func TestHTTPReplaysAreStrangers(t *testing.T) {
	b := newPeer(t, testKey, nil)
	tap := newWiretap(t, b.addr)
	b.self = tap.addr
	a := newPeer(t, testKey, nil)
	var said *http.Request
	tap.request = func(r *http.Request, body []byte) []byte { said = r.Clone(t.Context()); return body }
	a.mustSend(t, tap.addr, "hello")
	c, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	said.Body, said.ContentLength = io.NopCloser(strings.NewReader("hello")), int64(len("hello"))
	if err := said.Write(c); err != nil {
		t.Fatal(err)
	}
	if w, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || w.StatusCode != http.StatusUnauthorized {
		t.Fatalf("a message that came before: %v, %v; want 401", w, err)
	}
	b.strangers.mu.Lock()
	defer b.strangers.mu.Unlock()
	for _, open := range b.strangers.all {
		if open.RemoteAddr().String() == c.LocalAddr().String() {
			return
		}
	}
	t.Error("the connection of a replay counts as a member's")
}

// A panic is logged. What strangers send is not.
func TestHTTPLogs(t *testing.T) {
	var text bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	defer slog.SetDefault(was)
	l := &serverLog{}
	for range 3 {
		_, _ = l.Write([]byte("http: TLS handshake error from 192.0.2.1:1: http: panic serving\n"))
		_, _ = l.Write([]byte("http: panic serving 127.0.0.1:1: nil map\n"))
	}
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "nil map") || !strings.Contains(got, "WARN") {
		t.Errorf("the log is %q; want one panic", got)
	}
}

// A member with another key is named, once on each side and for each direction. What a
// stranger claims to be is not.
func TestHTTPNamesMembersWithAnotherKey(t *testing.T) {
	var text bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	defer slog.SetDefault(was)
	a, b := newPeer(t, testKey, nil), newPeer(t, []byte("fedcba9876543210fedcba9876543210"), nil)
	stranger := newPeer(t, []byte("another key of 32 bytes and more"), nil)
	for range 3 {
		for _, pair := range [][2]*peer{{a, b}, {b, a}, {stranger, a}} {
			if _, err := pair[0].Send(t.Context(), pair[1].addr, []byte("hello")); err == nil {
				t.Error("a message with another key was accepted")
			}
		}
	}
	log := text.String()
	for _, c := range []struct {
		what  string
		about *peer
		lines int
	}{
		{"does not accept this member's messages", a, 2}, // says b, and the stranger of itself
		{"does not accept this member's messages", b, 1},
		{"is not accepted", a, 1},
		{"is not accepted", b, 1},
	} {
		lines := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, c.what) && strings.Contains(line, "member="+c.about.addr) && strings.Contains(line, "same key") {
				lines++
			}
		}
		if lines != c.lines {
			t.Errorf("%d lines say that %s %s; want %d:\n%s", lines, c.about.addr, c.what, c.lines, log)
		}
	}
	if strings.Contains(log, "member="+stranger.addr) {
		t.Errorf("a stranger is named as a member:\n%s", log)
	}
}

func TestKeys(t *testing.T) {
	if key := TrimKey([]byte(string(testKey) + "\r\n")); !bytes.Equal(key, testKey) {
		t.Errorf("TrimKey: %q; want the key without the line end", key)
	}
	for _, c := range []struct {
		self string
		key  []byte
		tls  *tls.Config
		text string
	}{
		{"here", testKey, nil, "self is"},
		{"127.0.0.1:1", nil, nil, "32 or more"},
		{"127.0.0.1:1", testKey[1:], nil, "31 bytes"},
		{"127.0.0.1:1", testKey[1:], &tls.Config{}, "31 bytes"},
		{"127.0.0.1:1", nil, &tls.Config{}, "ClientAuth"},
	} {
		if _, err := NewHTTP(c.self, c.key, c.tls); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("NewHTTP(%q, %q): %v; want an error that says %q", c.self, c.key, err, c.text)
		}
	}
}

// With certificates on both sides, a sender's address is in its certificate.
func TestTLS(t *testing.T) {
	ca := newAuthority(t)
	local := ca.config(t, "127.0.0.1")
	a, b := newPeer(t, nil, local), newPeer(t, nil, local)
	a.mustSend(t, b.addr, "hello")
	b.strangers.mu.Lock()
	if n := len(b.strangers.all); n != 0 {
		t.Errorf("%d connections count as strangers'; want none: the member's has carried a message", n)
	}
	b.strangers.mu.Unlock()

	stranger := newPeer(t, nil, ca.config(t, "192.0.2.1")) // has a certificate, but not for its address
	if _, err := stranger.Send(t.Context(), b.addr, []byte("x")); err == nil {
		t.Error("a message from an address that is not in the certificate was received")
	}
	forged := newPeer(t, nil, newAuthority(t).config(t, "127.0.0.1"))
	forged.client.Transport.(*http.Transport).TLSClientConfig.RootCAs = ca.pool
	if _, err := forged.Send(t.Context(), b.addr, []byte("x")); err == nil {
		t.Error("a certificate of another authority was accepted")
	}
	anonymous := newPeer(t, testKey, &tls.Config{RootCAs: ca.pool, Certificates: local.Certificates})
	anonymous.client.Transport.(*http.Transport).TLSClientConfig.Certificates = nil
	if _, err := anonymous.Send(t.Context(), b.addr, []byte("x")); err == nil {
		t.Error("a message without a certificate was received")
	}
	if got := b.got(); len(got) != 1 {
		t.Errorf("%q were received; want the member's", got)
	}

	// With a key, TLS may be on one side alone.
	half := local.Clone()
	half.ClientAuth = tls.NoClientCert
	c, d := newPeer(t, testKey, half), newPeer(t, testKey, half)
	c.mustSend(t, d.addr, "hello")
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca := &authority{key: key, pool: x509.NewCertPool()}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.pool.AddCert(ca.cert)
	return ca
}

// config returns both ends of a member at an IP address.
func (ca *authority) config(t *testing.T, ip string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.ParseIP(ip)}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, RootCAs: ca.pool, ClientCAs: ca.pool,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}
}
