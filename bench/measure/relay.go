package measure

import (
	"net"
	"sync"
	"time"
)

// A Relay is a network that takes its time: it passes on what it receives, in
// either direction, half a round trip later.
//
// As the delay is the same for all, what came first leaves first: one queue and
// one goroutine for each direction serve all connections.
type Relay struct {
	Addr string // where clients connect to

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

// queued bounds what is on its way in one direction: at 1 ms and 100,000
// packets per second it is 100.
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

// Close hangs up on everyone.
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

// deliver passes on what is in queue when it is due. A write does not wait:
// what is on its way to a connection fits its buffers.
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
		_, _ = p.to.Write(p.data[:p.n]) // an error is for the connection's reader to notice
		buffers.Put(p.data)
	}
}
