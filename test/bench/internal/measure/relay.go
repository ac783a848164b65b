package measure

import (
	"net"
	"sync"
	"time"
)

// A Relay is a slow network: it forwards data, in either direction, half a round trip after it
// was received.
//
// Because the delay is constant, data leaves in the order of its arrival, and one queue and
// one goroutine for each direction serve all connections.
type Relay struct {
	Addr string // the address for clients

	listener net.Listener
	delay    time.Duration
	upstream string
	up, down chan packet
	done     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

type packet struct {
	due  time.Time
	to   net.Conn
	data *buffer // nil hangs up
	n    int     // bytes of data
}

type buffer [16 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// queued bounds the packets under way in one direction: at 1 ms and 100,000 packets per second
// they are 100.
const queued = 1 << 16

// StartRelay starts a relay to upstream with the given round trip.
func StartRelay(upstream string, roundTrip time.Duration) (*Relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{
		Addr: listener.Addr().String(), listener: listener, delay: roundTrip / 2, upstream: upstream,
		up: make(chan packet, queued), down: make(chan packet, queued),
	}
	var readers sync.WaitGroup
	readers.Go(func() { r.accept(&readers) })
	r.done.Go(func() { deliver(r.up) })
	r.done.Go(func() { deliver(r.down) })
	r.done.Go(func() {
		readers.Wait()
		close(r.up)
		close(r.down)
	})
	return r, nil
}

// Close closes all connections.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	_ = r.listener.Close()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.done.Wait()
}

func (r *Relay) accept(readers *sync.WaitGroup) {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", r.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, client, server)
		if r.closed {
			_ = client.Close()
			_ = server.Close()
		}
		r.mu.Unlock()
		readers.Go(func() { r.receive(client, server, r.up) })
		readers.Go(func() { r.receive(server, client, r.down) })
	}
}

func (r *Relay) receive(from, to net.Conn, queue chan<- packet) {
	for {
		data := buffers.Get().(*buffer)
		n, err := from.Read(data[:])
		due := time.Now().Add(r.delay)
		if n > 0 {
			queue <- packet{due, to, data, n}
		}
		if err != nil {
			queue <- packet{due: due, to: to}
			return
		}
	}
}

// deliver forwards the packets in queue when they are due. Writes do not block: the packets
// under way fit a connection's buffers.
func deliver(queue <-chan packet) {
	timer := newSleeper()
	defer timer.close()
	for p := range queue {
		if wait := time.Until(p.due); wait > 0 {
			timer.sleep(wait)
		}
		if p.data == nil {
			_ = p.to.Close()
			continue
		}
		_, _ = p.to.Write(p.data[:p.n]) // the connection's reader will notice an error
		buffers.Put(p.data)
	}
}
