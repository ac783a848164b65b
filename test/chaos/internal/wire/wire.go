// Package wire makes connections bad: a Link is a proxy in this process, between a client and
// its server, that applies the toxics of toxiproxy.
//
// Toxiproxy's own proxy hangs when a toxic is removed from a connection after its client has
// left. A Link removes no toxics: it closes healed connections, and new connections are good.
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

// Toxic is a fault of connections, in toxiproxy's words.
type Toxic struct {
	// Type is "latency", "bandwidth", "slow_close", "timeout", "reset_peer",
	// "slicer" or "limit_data".
	Type string

	// Upstream says that it applies to the data from clients, not to the server's replies.
	Upstream bool

	// Toxicity is the fraction of connections that it applies to. If zero, it applies to all.
	Toxicity float32

	// Attributes are the attributes of the type: times in ms, sizes in bytes, rates in KB/s.
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

// wrapper returns t in toxiproxy's form. It panics if toxiproxy has no such toxic.
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
	// Addr is the address that it listens on, such as "127.0.0.1:41234". It outlives a Cut.
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

// Inject makes the connections of l bad, including those that are open. Toxics add up.
func (l *Link) Inject(toxics ...Toxic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.toxics = append(l.toxics, toxics...)
	for c := range l.open {
		c.poison(toxics)
	}
}

// Heal removes all toxics, and closes the connections that had them.
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

// Mend ends a Cut. It returns an error if another program keeps the port: a program may hold
// it for a moment, as the local end of another connection.
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

// Redirect closes all connections, and connects new ones to the server at upstream.
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

// serve copies data between client and the server, until one of them hangs up.
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
		c.close() // it was cut or redirected in the meantime
	}
	l.open[c] = struct{}{}
	c.poison(l.toxics)
	l.mu.Unlock()

	c.pass()

	l.mu.Lock()
	delete(l.open, c)
	l.mu.Unlock()
}
