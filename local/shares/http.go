package shares

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
)

// HTTP carries messages between members as the bodies of POST requests, over TLS 1.3. The
// members share a key. Each of them derives the same certificate from it, and accepts no
// certificate of another key, in either direction. So a stranger can't read, change or
// repeat messages and replies, and there is no certificate authority to run.
//
// It is a Transport. It is safe for concurrent use. Close it.
type HTTP struct {
	self     string
	receive  func(ctx context.Context, message []byte) ([]byte, error)
	observer observe.Observer

	client    *http.Client
	server    *http.Server
	served    sync.WaitGroup
	strangers strangers
	warned    sync.Map // when a warning was last given, by its text and member
}

// HTTPOptions configures an HTTP. Nil and the zero value select the defaults.
type HTTPOptions struct {
	// Observer receives a Warned for each member with another key, once an hour, and for
	// a listener or a receiver that fails. If nil, weirlog.Default(), which logs to
	// slog.Default.
	Observer observe.Observer
}

const (
	path     = "/weir/shares"
	toHeader = "Weir-To" // the member that a message is for

	maxStrangers = 256
	callTimeout  = 2 * time.Second
	warnEvery    = time.Hour
)

// NewHTTP returns an HTTP for the member that the others know as self: a host and a port.
// All members have the same key, of MinKeyBytes or more. Errors wrap quota.ErrInvalid.
func NewHTTP(self string, key []byte, options *HTTPOptions) (*HTTP, error) {
	if _, _, err := net.SplitHostPort(self); err != nil {
		return nil, invalid.Errorf("shares: self is %q; it must be a host and a port, such as 127.0.0.1:9001", self)
	}
	config, err := tlsOf(key)
	if err != nil {
		return nil, err
	}
	h := &HTTP{self: self, observer: weirlog.Ensure(nil), client: newClient(config.Clone())}
	if options != nil && options.Observer != nil {
		h.observer = weirlog.Ensure(options.Observer)
	}
	h.server = h.newServer(config)
	return h, nil
}

// Serve calls receive to reply to the messages of other members that come to listener, until
// Close. It returns at once.
func (h *HTTP) Serve(listener net.Listener, receive func(ctx context.Context, message []byte) (reply []byte, err error)) {
	h.receive = receive
	h.served.Go(func() {
		if err := h.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			h.warn(h.self, "shares: messages of other members are no longer received", err.Error())
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

func newClient(config *tls.Config) *http.Client {
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: callTimeout}).DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   callTimeout,
		ResponseHeaderTimeout: callTimeout,
		MaxIdleConnsPerHost:   2,
		IdleConnTimeout:       time.Minute,
		DisableCompression:    true,
		Protocols:             http1(),
	}
	return &http.Client{
		Transport:     transport,
		Timeout:       callTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// http1 returns HTTP/1.1 alone, where a message without an answer ends its connection.
func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// Send sends a message to the member at an address and returns its reply. If the error is
// not a *ReplyError, the member may or may not have received the message.
func (h *HTTP) Send(ctx context.Context, to string, message []byte) (reply []byte, err error) {
	reply, status, err := h.post(ctx, to, message)
	if errors.Is(err, errOtherKey) {
		h.warn(to, "shares: the process at a member's address is not one, or has another key", "give all members the same key")
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("shares: %s: %w", to, err)
	case status != http.StatusOK:
		return nil, &ReplyError{Member: to, Text: string(reply)}
	}
	return reply, nil
}

// ReplyError is an error that a member replied with.
type ReplyError struct {
	Member string // its address
	Text   string
}

func (e *ReplyError) Error() string { return "shares: " + e.Member + " replied: " + e.Text }

func (h *HTTP) post(ctx context.Context, to string, message []byte) (reply []byte, status int, err error) {
	if len(message) > division.MaxMessage {
		return nil, 0, fmt.Errorf("the message has %d bytes; it may have %d", len(message), division.MaxMessage)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+to+path, bytes.NewReader(message))
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set(toHeader, to)
	w, err := h.client.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer w.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(w.Body, division.MaxMessage+1))
	if err == nil && len(reply) > division.MaxMessage {
		err = fmt.Errorf("the reply has more than %d bytes", division.MaxMessage)
	}
	return reply, w.StatusCode, err
}

func (h *HTTP) newServer(config *tls.Config) *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(h.serve),
		TLSConfig:         config,
		ReadHeaderTimeout: callTimeout,
		ReadTimeout:       callTimeout,
		WriteTimeout:      2 * callTimeout,
		IdleTimeout:       2 * time.Minute, // longer than clients keep connections
		MaxHeaderBytes:    4 << 10,
		Protocols:         http1(),
		ErrorLog:          log.New(serverLog{h}, "", 0),
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateNew {
				h.strangers.add(c)
			} else { // it has the key, or is closed
				h.strangers.remove(c)
			}
		},
	}
}

// serve replies to a member.
func (h *HTTP) serve(w http.ResponseWriter, r *http.Request) {
	if to := r.Header.Get(toHeader); r.Method != http.MethodPost || r.URL.Path != path || to != h.self {
		http.Error(w, fmt.Sprintf("this is no message for %q", h.self), http.StatusMisdirectedRequest)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, division.MaxMessage))
	if err != nil {
		http.Error(w, "the message is too long, or cut off", http.StatusBadRequest)
		return
	}
	reply, err := h.receive(r.Context(), body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	_, _ = w.Write(reply)
}

// strangers contains the connections that have not shown that they have the key, the oldest
// first. The oldest makes room for a new connection: if new connections were refused, silent
// ones would keep members out.
type strangers struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (s *strangers) add(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxStrangers {
		oldest := s.conns[0]
		if t, ok := oldest.(*tls.Conn); ok {
			oldest = t.NetConn() // closing a tls.Conn sends an alert, which may take seconds
		}
		_ = oldest.Close()
		s.conns = slices.Delete(s.conns, 0, 1)
	}
	s.conns = append(s.conns, c)
}

func (s *strangers) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(o net.Conn) bool { return o == c })
}

// serverLog passes on the lines that a server logs about this process: panics, and a listener
// that fails. It drops lines about strangers, which could cause any number of them.
type serverLog struct{ *HTTP }

func (l serverLog) Write(line []byte) (int, error) {
	for _, text := range []string{"http: panic", "http: Accept error"} {
		if strings.HasPrefix(string(line), text) {
			l.warn(l.self, "shares: "+text, strings.TrimSpace(string(line)))
		}
	}
	return len(line), nil
}

// warn passes on a warning about a member, if the same was not given lately.
func (h *HTTP) warn(member, text, hint string) {
	now := time.Now()
	if last, ok := h.warned.Swap(text+member, now); ok && now.Sub(last.(time.Time)) < warnEvery {
		h.warned.Store(text+member, last)
		return
	}
	h.observer.Warned(observe.Warned{Text: text + ": " + member, Hint: hint})
}
