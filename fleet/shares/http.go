package shares

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/fleet/shares/internal/division"
	"github.com/weir-go/weir/internal/invalid"
)

// HTTP carries messages between members as the bodies of POST requests, over HTTP/1.1 or,
// with TLS, HTTP/2. Each message and each reply is sealed with HMAC-SHA256 under a key
// that all members share, or carried by TLS with certificates on both sides, or both.
//
// The seal of a message is over its method and path, sender and receiver, a nonce, a
// challenge of the receiver's, and its body. The seal of a reply is over its status and
// body and the seal of what it replies to. So a message or a reply that is changed, is
// for another member, or comes a second time, is not obeyed. What is on the wire is not
// secret without TLS: shares, and the names and the demand of policies and hot keys.
//
// It is a Transport. It is safe for concurrent use. Close it.
type HTTP struct {
	self    string
	key     []byte
	receive func(ctx context.Context, message []byte) ([]byte, error)

	client    *http.Client
	scheme    string
	tls       *tls.Config
	server    *http.Server
	served    sync.WaitGroup
	strangers strangers

	challenges challenges
	known      sync.Map // the latest challenges of other members, by their addresses
	distrusted sync.Map // when a warning was last logged, by its text and the member's address
}

const (
	path = "/weir/shares"

	maxStrangers   = 256
	callTimeout    = 2 * time.Second
	challengeEvery = time.Minute
	warnEvery      = time.Hour // about a member
)

// Headers of a message, and of its reply the last.
const (
	fromHeader      = "Weir-From"
	toHeader        = "Weir-To"
	challengeHeader = "Weir-Challenge"
	nonceHeader     = "Weir-Nonce"
	bodyHeader      = "Weir-Body" // its SHA-256
	sealHeader      = "Weir-Seal"
)

// NewHTTP returns an HTTP of the member that the others know as self: a host and a port.
//
// The key has at least MinKeyBytes. It may be nil if config demands and verifies clients'
// certificates; then the host of a sender's address must be a name in its certificate.
// A config is for both ends: it has this member's certificate, and the authorities that
// sign the other members' certificates as RootCAs and ClientCAs. Without TLS it is nil. Without a
// key, these authorities must sign certificates of members alone: any certificate of
// theirs for the host of a member is a member's.
//
// Errors wrap quota.ErrInvalid.
func NewHTTP(self string, key []byte, config *tls.Config) (*HTTP, error) {
	h := &HTTP{self: self, key: key, scheme: "http", challenges: challenges{every: challengeEvery}}
	if _, _, err := net.SplitHostPort(self); err != nil {
		return nil, invalid.Errorf("shares: self is %q; it must be a host and a port, such as 127.0.0.1:9001", self)
	}
	if key != nil || config == nil {
		if err := checkKey(key); err != nil {
			return nil, err
		}
	}
	if config != nil {
		if key == nil && config.ClientAuth != tls.RequireAndVerifyClientCert {
			return nil, invalid.Errorf("shares: there is no key, and TLS has ClientAuth %v; without a key it must be %v", config.ClientAuth, tls.RequireAndVerifyClientCert)
		}
		h.scheme, h.tls = "https", config.Clone()
	}
	h.client = h.newClient()
	h.server = h.newServer()
	return h, nil
}

// Serve has receive reply to the messages of other members that come to listener, until
// Close. It returns at once. Panics of receive, and listeners that fail, are logged to
// slog.Default. So are, once an hour for each member, messages and replies that are not
// sealed with this member's key.
func (h *HTTP) Serve(listener net.Listener, receive func(ctx context.Context, message []byte) (reply []byte, err error)) {
	h.receive = receive
	h.served.Go(func() {
		serve := h.server.Serve
		if h.tls != nil {
			serve = func(l net.Listener) error { return h.server.ServeTLS(l, "", "") }
		}
		if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
			slog.Error("shares: messages of other members are no longer received", "error", err)
		}
	})
}

// Close stops listening. It waits for replies, but not for long.
func (h *HTTP) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if h.server.Shutdown(ctx) != nil {
		_ = h.server.Close()
	}
	h.client.CloseIdleConnections()
	h.served.Wait()
}

func (h *HTTP) newClient() *http.Client {
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: callTimeout}).DialContext,
		TLSClientConfig:       h.tls.Clone(),
		TLSHandshakeTimeout:   callTimeout,
		ResponseHeaderTimeout: callTimeout,
		MaxIdleConnsPerHost:   2,
		IdleConnTimeout:       time.Minute,
		DisableCompression:    true,
		ForceAttemptHTTP2:     true,
	}
	return &http.Client{
		Transport:     transport,
		Timeout:       callTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Send sends a message to the member at an address and returns its reply. If the error is
// not a *ReplyError, the other may have received it or not.
func (h *HTTP) Send(ctx context.Context, to string, message []byte) (reply []byte, err error) {
	challenge, _ := h.known.LoadOrStore(to, "")
	reply, status, err := h.post(ctx, to, challenge.(string), message)
	if err == nil && status == http.StatusConflict {
		h.known.Store(to, string(reply))
		reply, status, err = h.post(ctx, to, string(reply), message)
	}
	if status == http.StatusUnauthorized {
		h.warn("shares: a member does not accept this member's messages, or is not one", to, "do both have the same key?")
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("shares: %s: %w", to, err)
	case status != http.StatusOK:
		return nil, &ReplyError{Member: to, Text: string(reply)}
	}
	return reply, nil
}

// warn logs a warning about the member of that address, if none was lately. Only members
// have addresses to which this one has sent something: a stranger's claim is not logged.
func (h *HTTP) warn(text, member, why string) {
	if _, ok := h.known.Load(member); !ok {
		return
	}
	now := time.Now()
	if last, ok := h.distrusted.Swap(text+member, now); ok && now.Sub(last.(time.Time)) < warnEvery {
		h.distrusted.Store(text+member, last)
		return
	}
	slog.Warn(text, "member", member, "why", why)
}

// ReplyError is what a member replied in place of a reply.
type ReplyError struct {
	Member string // its address
	Text   string
}

func (e *ReplyError) Error() string { return "shares: " + e.Member + " replied: " + e.Text }

func (h *HTTP) post(ctx context.Context, to, challenge string, message []byte) (reply []byte, status int, err error) {
	if len(message) > division.MaxMessage {
		return nil, 0, fmt.Errorf("the message has %d bytes; it may have %d", len(message), division.MaxMessage)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.scheme+"://"+to+path, bytes.NewReader(message))
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set(fromHeader, h.self)
	r.Header.Set(toHeader, to)
	r.Header.Set(challengeHeader, challenge)
	r.Header.Set(nonceHeader, rand.Text())
	r.Header.Set(bodyHeader, hashOf(message))
	asked := h.sealOf(r)
	r.Header.Set(sealHeader, asked)
	w, err := h.client.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer w.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(w.Body, division.MaxMessage+1))
	switch {
	case err != nil:
		return nil, 0, err
	case len(reply) > division.MaxMessage:
		return nil, 0, fmt.Errorf("the reply has more than %d bytes", division.MaxMessage)
	case h.key != nil && !sameSeal(w.Header.Get(sealHeader), h.sealOfReply(asked, w.StatusCode, reply)):
		return nil, w.StatusCode, fmt.Errorf("the reply, status %d, does not have the seal of this member's key and message", w.StatusCode)
	}
	return reply, w.StatusCode, nil
}

func (h *HTTP) sealOf(r *http.Request) string {
	get := r.Header.Get
	return seal(h.key, "message", r.Method, r.URL.Path, get(fromHeader), get(toHeader), get(challengeHeader), get(nonceHeader), get(bodyHeader))
}

func (h *HTTP) sealOfReply(asked string, status int, reply []byte) string {
	return seal(h.key, "reply", asked, strconv.Itoa(status), string(reply))
}

func (h *HTTP) newServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(h.serve),
		TLSConfig:         h.tls,
		ReadHeaderTimeout: callTimeout,
		ReadTimeout:       callTimeout,
		WriteTimeout:      2 * callTimeout,
		IdleTimeout:       2 * time.Minute, // more than clients keep them
		MaxHeaderBytes:    4 << 10,
		ErrorLog:          log.New(&serverLog{}, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				h.strangers.add(c)
			case http.StateClosed, http.StateHijacked:
				h.strangers.remove(c)
			case http.StateActive, http.StateIdle:
			}
		},
	}
}

type connKey struct{}

// strangers are the connections that have carried no message of a member, the oldest
// first. The oldest makes room for a new one: if the new one were refused, connections
// that say nothing would keep members out.
type strangers struct {
	mu  sync.Mutex
	all []net.Conn
}

func (s *strangers) add(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxStrangers {
		oldest := s.all[0]
		if t, ok := oldest.(*tls.Conn); ok {
			oldest = t.NetConn() // a tls.Conn says goodbye, which may take seconds
		}
		_ = oldest.Close()
		s.all = slices.Delete(s.all, 0, 1)
	}
	s.all = append(s.all, c)
}

func (s *strangers) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(o net.Conn) bool { return o == c })
}

// serverLog passes on what a server logs of this process: panics, and a listener that
// fails. What it logs of strangers is no news, and would be as much as they like.
type serverLog struct {
	mu     sync.Mutex
	latest time.Time
}

const logEvery = time.Second

func (l *serverLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if !strings.HasPrefix(text, "http: panic ") && !strings.HasPrefix(text, "http2: panic ") && !strings.HasPrefix(text, "http: Accept error") {
		return len(line), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.latest) >= logEvery {
		l.latest = now
		slog.Warn("shares: " + text)
	}
	return len(line), nil
}

// serve replies to a member. Of a stranger it reads the header and no more.
func (h *HTTP) serve(w http.ResponseWriter, r *http.Request) {
	isMessage := r.Method == http.MethodPost && r.URL.Path == path
	if isMessage {
		if why := h.distrusts(r); why != "" {
			h.warn("shares: a message that names a member as its sender is not accepted", r.Header.Get(fromHeader), why)
			isMessage = false
		}
	}
	if !isMessage {
		w.Header().Set("Connection", "close")
		http.Error(w, "this is no message of a member to this one", http.StatusUnauthorized)
		return
	}
	ok, latest := h.challenges.accept(r.Header.Get(challengeHeader), r.Header.Get(nonceHeader), time.Now())
	switch {
	case !ok && latest == "":
		http.Error(w, "the message came before", http.StatusUnauthorized)
		return
	case !ok:
		h.reply(w, r, http.StatusConflict, []byte(latest))
		return
	}
	// Not before the message is a new one: a stranger may send again what it has seen.
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		h.strangers.remove(c)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, division.MaxMessage))
	if err != nil || hashOf(body) != r.Header.Get(bodyHeader) {
		http.Error(w, "the body is not the message's", http.StatusBadRequest)
		return
	}
	reply, err := h.receive(r.Context(), body)
	if err != nil {
		h.reply(w, r, http.StatusUnprocessableEntity, []byte(err.Error()))
		return
	}
	h.reply(w, r, http.StatusOK, reply)
}

func (h *HTTP) reply(w http.ResponseWriter, r *http.Request, status int, reply []byte) {
	w.Header().Set(sealHeader, h.sealOfReply(r.Header.Get(sealHeader), status, reply))
	w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
	w.WriteHeader(status)
	_, _ = w.Write(reply)
}

// distrusts returns why r's header is not of a member, and for this one, or "".
func (h *HTTP) distrusts(r *http.Request) string {
	if to := r.Header.Get(toHeader); to != h.self {
		return fmt.Sprintf("it is for %q, and this member is %q", to, h.self)
	}
	if h.key != nil {
		if sameSeal(r.Header.Get(sealHeader), h.sealOf(r)) {
			return ""
		}
		return "it does not have the seal of this member's key: do both have the same key?"
	}
	host, _, err := net.SplitHostPort(r.Header.Get(fromHeader))
	if err == nil && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && r.TLS.PeerCertificates[0].VerifyHostname(host) == nil {
		return ""
	}
	return "its certificate is not the sender's"
}
