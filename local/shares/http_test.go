package shares

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

var (
	testKey  = []byte("0123456789abcdef0123456789abcdef")
	otherKey = []byte("another key, of 32 bytes or more")
)

// peer is a member that records the messages it receives, and repeats them in its replies.
type peer struct {
	observe.Nothing
	*HTTP
	addr string

	mu       sync.Mutex
	received []string
	warnings []observe.Warned
}

func newPeer(t *testing.T, key []byte) *peer { return newPeerBehind(t, key, nil) }

// newPeerBehind returns a member that others know by the address of w, which relays to it.
func newPeerBehind(t *testing.T, key []byte, w *wire) *peer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{addr: listener.Addr().String()}
	if w != nil {
		p.addr = w.relay(t, p.addr)
	}
	if p.HTTP, err = NewHTTP(p.addr, key, &HTTPOptions{Observer: p}); err != nil {
		t.Fatal(err)
	}
	// A busy machine may need more than callTimeout for a large message. ReadHeaderTimeout,
	// which keeps strangers out, stays.
	transport := p.client.Transport.(*http.Transport)
	transport.TLSHandshakeTimeout, transport.ResponseHeaderTimeout, p.client.Timeout = time.Minute, time.Minute, time.Minute
	p.server.ReadTimeout, p.server.WriteTimeout = time.Minute, time.Minute
	p.Serve(listener, func(_ context.Context, message []byte) ([]byte, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.received = append(p.received, string(message))
		switch string(message) {
		case "nonsense":
			return nil, errors.New("that is no message")
		case "panic":
			panic("nil map")
		}
		return append([]byte("re: "), message...), nil
	})
	t.Cleanup(p.Close)
	return p
}

func (p *peer) Warned(e observe.Warned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.warnings = append(p.warnings, e)
}

// got returns the messages received since the last call.
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
	a, b := newPeer(t, testKey), newPeer(t, testKey)
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
	if !errors.As(err, &reply) || reply.Text != "that is no message\n" || reply.Member != b.addr {
		t.Errorf("Send: %v; want a *ReplyError with what the member says", err)
	}
	if _, err := a.Send(t.Context(), b.addr, make([]byte, division.MaxMessage+1)); err == nil {
		t.Error("a message above MaxMessage was sent")
	}
	if _, err := a.Send(t.Context(), "127.0.0.1:1", []byte("x")); err == nil || errors.As(err, &reply) {
		t.Errorf("Send to no member: %v; want an error of the network", err)
	}
}

// A process that starts again has the same key in its certificate, and is a member at once.
func TestHTTPAfterARestart(t *testing.T) {
	a, b := newPeer(t, testKey), newPeer(t, testKey)
	a.mustSend(t, b.addr, "before")
	b.Close()
	listener, err := net.Listen("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	again, err := NewHTTP(b.addr, testKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	again.Serve(listener, func(context.Context, []byte) ([]byte, error) { return []byte("again"), nil })
	for begin := time.Now(); ; { // the first message may be lost with the old connection
		if reply, err := a.Send(t.Context(), b.addr, []byte("after")); err == nil && string(reply) == "again" {
			return
		} else if time.Since(begin) > time.Minute {
			t.Fatalf("Send: %q, %v; want the reply of the successor", reply, err)
		}
	}
}

// A request that is no message for this member is refused, although the sender has the key.
func TestHTTPForAnother(t *testing.T) {
	a, b := newPeer(t, testKey), newPeer(t, testKey)
	for what, change := range map[string]func(r *http.Request){
		"for another member": func(r *http.Request) { r.Header.Set(toHeader, "127.0.0.1:1") },
		"for no member":      func(r *http.Request) { r.Header.Del(toHeader) },
		"to another path":    func(r *http.Request) { r.URL.Path = "/" },
		"by another method":  func(r *http.Request) { r.Method = http.MethodPut },
	} {
		r, err := http.NewRequest(http.MethodPost, "https://"+b.addr+path, strings.NewReader("move all units"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(toHeader, b.addr)
		change(r)
		w, err := a.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Body.Close()
		if got := b.got(); w.StatusCode != http.StatusMisdirectedRequest || len(got) > 0 {
			t.Errorf("a message %s: status %d, and %q was received; want 421 and nothing", what, w.StatusCode, got)
		}
	}
}

// No message of a process without the key is received, whatever certificate it shows.
func TestHTTPStrangers(t *testing.T) {
	b := newPeer(t, testKey)
	ours, err := tlsOf(testKey)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := tlsOf(otherKey)
	if err != nil {
		t.Fatal(err)
	}
	_, stolen, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		certificates []tls.Certificate
		version      uint16
	}{
		"no certificate":                             {nil, tls.VersionTLS13},
		"the certificate of another key":             {theirs.Certificates, tls.VersionTLS13},
		"a member's certificate, and no key of it":   {[]tls.Certificate{{Certificate: ours.Certificates[0].Certificate, PrivateKey: stolen}}, tls.VersionTLS13},
		"a member's certificate, and an old version": {ours.Certificates, tls.VersionTLS12},
	} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			Certificates: c.certificates, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, MaxVersion: c.version,
		}}}
		r, err := http.NewRequest(http.MethodPost, "https://"+b.addr+path, strings.NewReader("move all units"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(toHeader, b.addr)
		w, err := client.Do(r)
		if err == nil {
			_ = w.Body.Close()
			t.Errorf("with %s: status %d; want no answer", what, w.StatusCode)
		}
		if got := b.got(); len(got) > 0 {
			t.Errorf("with %s: %q was received; want nothing", what, got)
		}
	}
	w, err := http.Post("http://"+b.addr+path, "", strings.NewReader("move all units"))
	if err == nil {
		_ = w.Body.Close()
	}
	if got := b.got(); err == nil && w.StatusCode != http.StatusBadRequest || len(got) > 0 {
		t.Errorf("without TLS: %v, %v, and %q was received; want 400 and nothing", w, err, got)
	}
	newPeer(t, testKey).mustSend(t, b.addr, "hello")
}

// wire relays connections to a member, and may change the bytes.
type wire struct {
	to     string
	change func(sent []byte) []byte
	back   func(replied []byte) []byte
}

// relay returns the address at which w relays to a member.
func (w *wire) relay(t *testing.T, to string) string {
	w.to = to
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	pass := func(from, to net.Conn, change func([]byte) []byte) {
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if n > 0 {
				_, _ = to.Write(change(b[:n]))
			}
			if err != nil {
				_ = to.Close()
				return
			}
		}
	}
	all.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			all.Go(func() { pass(in, out, w.change) })
			all.Go(func() { pass(out, in, w.back) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	return listener.Addr().String()
}

// Messages changed on the wire, in either direction, are not received, and a message that has
// passed once is not received again.
func TestHTTPOnTheWire(t *testing.T) {
	same := func(b []byte) []byte { return b }
	flip := func(after int) func([]byte) []byte {
		var mu sync.Mutex
		passed, done := 0, false
		return func(sent []byte) []byte {
			mu.Lock()
			defer mu.Unlock()
			if passed += len(sent); passed > after && !done {
				sent[len(sent)-1] ^= 1
				done = true
			}
			return sent
		}
	}
	message := strings.Repeat("move all units ", 500)
	for _, after := range []int{0, 300, 1000, 1500, 2000} {
		for _, w := range []*wire{{change: flip(after), back: same}, {change: same, back: flip(after)}} {
			a, b := newPeer(t, testKey), newPeerBehind(t, testKey, w)
			reply, err := a.Send(t.Context(), b.addr, []byte(message))
			if got := b.got(); err == nil && string(reply) != "re: "+message || len(got) > 0 && got[0] != message {
				t.Errorf("a bit after %d bytes was changed: %d bytes were received, and a reply of %d, %v", after, len(strings.Join(got, "")), len(reply), err)
			}
			if err == nil && after < 1500 {
				t.Errorf("a bit after %d bytes was changed, and there is no error", after)
			}
			a.Close()
			b.Close()
		}
	}

	var record bytes.Buffer
	var recording sync.Mutex
	w := &wire{back: same, change: func(sent []byte) []byte {
		recording.Lock()
		defer recording.Unlock()
		record.Write(sent)
		return sent
	}}
	a, b := newPeer(t, testKey), newPeerBehind(t, testKey, w)
	a.mustSend(t, b.addr, "move all units")
	b.got()
	c, err := net.Dial("tcp", w.to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	recording.Lock()
	_, _ = c.Write(record.Bytes())
	recording.Unlock()
	_, _ = io.Copy(io.Discard, c)
	if got := b.got(); len(got) > 0 {
		t.Errorf("%q was received a second time", got)
	}
}

// Replies that are too long, or that redirect, are short errors.
func TestHTTPReplies(t *testing.T) {
	config, err := tlsOf(testKey)
	if err != nil {
		t.Fatal(err)
	}
	a, b := newPeer(t, testKey), newPeer(t, testKey)
	for what, reply := range map[string]http.HandlerFunc{
		"huge": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2*division.MaxMessage)) },
		"to look elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+b.addr+path, http.StatusTemporaryRedirect)
		},
	} {
		listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: reply, ReadHeaderTimeout: time.Minute}
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(listener) })
		if got, err := a.Send(t.Context(), listener.Addr().String(), []byte("hello")); err == nil || len(err.Error()) > 300 {
			t.Errorf("a reply %s: %.40q, %v; want a short error", what, got, err)
		}
		_ = server.Close()
		served.Wait()
	}
	if got := b.got(); len(got) > 0 {
		t.Errorf("%q was received by a redirect", got)
	}
}

// Strangers that send slowly, or nothing, are disconnected. Members are still served.
func TestHTTPSlowStrangers(t *testing.T) {
	a, b := newPeer(t, testKey), newPeer(t, testKey)
	const slow = 20
	ended := make(chan time.Duration, slow)
	for i := range slow {
		conn, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write([]byte{22, 3, 1, 2, 0}[:i%6]) // the begin of a handshake
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

// Connections of strangers, however many, do not keep members out: the oldest are closed, but
// never a member's connection.
func TestHTTPBoundsConnections(t *testing.T) {
	a, b := newPeer(t, testKey), newPeer(t, testKey)
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
	if n := len(b.strangers.conns); n > maxStrangers {
		t.Errorf("%d connections of strangers are open; want at most %d", n, maxStrangers)
	}
	b.strangers.mu.Unlock()
	// Another connection would be a stranger's until it has shown its key.
	a.client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("the member's connection was closed")
	}
	a.mustSend(t, b.addr, "hello again")
	if len(b.warnings) > 0 {
		t.Errorf("strangers made the warnings %q", b.warnings)
	}
}

// A panic causes a warning. Messages of strangers do not.
func TestHTTPWarnsOfPanics(t *testing.T) {
	a, b := newPeer(t, testKey), newPeer(t, testKey)
	for range 3 {
		if _, err := a.Send(t.Context(), b.addr, []byte("panic")); err == nil {
			t.Error("a reply to a panic")
		}
		_, _ = serverLog{b.HTTP}.Write([]byte("http: TLS handshake error from 192.0.2.1:1: http: panic serving\n"))
	}
	b.Close() // waits for the log
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.warnings) != 1 || !strings.Contains(b.warnings[0].Text, "http: panic: "+b.addr) || !strings.Contains(b.warnings[0].Hint, "nil map") {
		t.Errorf("the warnings are %q; want one of the panic", b.warnings)
	}
}

// A member with another key is named once, on each side. A stranger is not.
func TestHTTPNamesMembersWithAnotherKey(t *testing.T) {
	a, b, stranger := newPeer(t, testKey), newPeer(t, otherKey), newPeer(t, []byte("a third key, of 32 bytes or more"))
	for range 3 {
		for _, pair := range [][2]*peer{{a, b}, {b, a}, {stranger, a}} {
			if _, err := pair[0].Send(t.Context(), pair[1].addr, []byte("hello")); !errors.Is(err, errOtherKey) {
				t.Errorf("a message to a member with another key: %v; want an error that says so", err)
			}
		}
	}
	if got := append(a.got(), b.got()...); len(got) > 0 {
		t.Errorf("%q were received; want nothing", got)
	}
	for _, c := range []struct{ warned, about *peer }{{a, b}, {b, a}} {
		w := c.warned.warnings
		if len(w) != 1 || !strings.Contains(w[0].Text, "has another key: "+c.about.addr) || !strings.Contains(w[0].Hint, "same key") {
			t.Errorf("%s warns %q; want one warning about %s", c.warned.addr, w, c.about.addr)
		}
	}
	past := time.Now().Add(-2 * warnEvery)
	a.warned.Range(func(key, _ any) bool { a.warned.Store(key, past); return true })
	_, _ = a.Send(t.Context(), b.addr, []byte("hello"))
	if len(a.warnings) != 2 {
		t.Errorf("an hour later, there are %d warnings; want a second one", len(a.warnings))
	}
}

func TestKeys(t *testing.T) {
	if key := TrimKey([]byte(string(testKey) + "\r\n")); !bytes.Equal(key, testKey) {
		t.Errorf("TrimKey: %q; want the key without the line end", key)
	}
	for _, c := range []struct {
		self string
		key  []byte
		text string
	}{
		{"here", testKey, "self is"},
		{"127.0.0.1:1", nil, "32 or more"},
		{"127.0.0.1:1", testKey[1:], "31 bytes"},
	} {
		if _, err := NewHTTP(c.self, c.key, nil); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("NewHTTP(%q, %q): %v; want an error that says %q", c.self, c.key, err, c.text)
		}
	}
}
