// Package wire makes connections bad: a Link is a proxy in this process, between a
// client and its server, that applies the toxics of toxiproxy.
//
// Toxiproxy's own proxy hangs when a toxic is removed from a connection whose client
// has left. A Link removes none: what is healed is closed, and new connections are good.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// Toxic is what is wrong with connections, in toxiproxy's words.
type Toxic struct {
	// Type is "latency", "bandwidth", "slow_close", "timeout", "reset_peer",
	// "slicer" or "limit_data".
	Type string

	// Upstream says that it applies to what clients send, not to what the server
	// replies.
	Upstream bool

	// Toxicity is the part of the connections that are bad. If zero, all are.
	Toxicity float32

	// Attributes are the type's: times are ms, sizes bytes, rates KB/s.
	Attributes Attributes
}

// Attributes are settings of a toxic.
type Attributes map[string]int

// String returns t as "latency(jitter:5 latency:20)".
func (t Toxic) String() string {
	attributes := strings.TrimPrefix(fmt.Sprint(map[string]int(t.Attributes)), "map[")
	s := t.Type + "(" + strings.TrimSuffix(attributes, "]") + ")"
	if t.Upstream {
		s += " upstream"
	}
	return s
}

// wrapper returns t as toxiproxy has it. It panics if toxiproxy has no such toxic.
func (t Toxic) wrapper() *toxics.ToxicWrapper {
	w := &toxics.ToxicWrapper{Type: t.Type, Toxicity: t.Toxicity}
	if w.Toxicity == 0 {
		w.Toxicity = 1
	}
	text, err := json.Marshal(t.Attributes)
	if err == nil && toxics.New(w) == nil {
		err = errors.New("there is no such toxic")
	}
	if err == nil {
		err = json.Unmarshal(text, w.Toxic)
	}
	if err != nil {
		panic(fmt.Sprintf("wire: %v: %v", t, err))
	}
	return w
}

// Link is a TCP proxy to one server. A new one passes on everything.
type Link struct {
	// Addr is where it listens, such as "127.0.0.1:41234". It outlives a Cut.
	Addr string

	wg sync.WaitGroup // of all goroutines

	mu       sync.Mutex
	upstream string
	listener net.Listener // nil while it is cut
	toxics   []Toxic
	open     map[*connection]struct{}
}

// NewLink returns a link to the server at upstream. The caller must call Close.
func NewLink(upstream string) (*Link, error) {
	l := &Link{Addr: "127.0.0.1:0", upstream: upstream, open: make(map[*connection]struct{})}
	if err := l.Mend(); err != nil {
		return nil, err
	}
	l.Addr = l.listener.Addr().String()
	return l, nil
}

// Inject makes the connections of l bad, those that are open and those to come. Toxics
// add up.
func (l *Link) Inject(all ...Toxic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.toxics = append(l.toxics, all...)
	for c := range l.open {
		c.poison(all)
	}
}

// Heal removes all toxics. It closes the connections that had them.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.toxics = nil
	for c := range l.open {
		if c.toxic {
			c.close()
		}
	}
}

// Cut closes all connections and refuses new ones.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
	for c := range l.open {
		c.close()
	}
}

// Mend ends a Cut. It returns an error if another program keeps the port: one may hold
// it for a moment, as the local end of a separate connection.
func (l *Link) Mend() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		return nil
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		listener, err := net.Listen("tcp", l.Addr)
		if err == nil {
			l.listener = listener
			l.wg.Go(func() { l.accept(listener) })
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return err
		}
	}
}

// Redirect closes all connections, and leads new ones to the server at upstream.
func (l *Link) Redirect(upstream string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.upstream = upstream
	for c := range l.open {
		c.close()
	}
}

// Close ends the link, and returns when all its goroutines have ended.
func (l *Link) Close() {
	l.Cut()
	l.wg.Wait()
}

func (l *Link) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.serve(client, listener) })
	}
}

// serve passes on what client and the server send, until one of them hangs up.
func (l *Link) serve(client net.Conn, listener net.Listener) {
	l.mu.Lock()
	upstream := l.upstream
	l.mu.Unlock()
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	c := newConnection(client.(*net.TCPConn), server.(*net.TCPConn))
	l.mu.Lock()
	if l.listener != listener || l.upstream != upstream {
		c.close() // it was cut meanwhile
	}
	l.open[c] = struct{}{}
	c.poison(l.toxics)
	l.mu.Unlock()

	c.pass()

	l.mu.Lock()
	delete(l.open, c)
	l.mu.Unlock()
}
