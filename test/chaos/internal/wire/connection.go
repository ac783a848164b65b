package wire

import (
	"net"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// connection is a connection of a client and the link's connection to the server. Each
// direction is a reader, a chain of toxics with channels between them, and a writer.
type connection struct {
	client, server *net.TCPConn
	toxic          bool // guarded by the link's mutex

	// Toxics for the two directions; never full.
	up, down chan *toxics.ToxicWrapper
}

type chunks chan *stream.StreamChunk

const maxToxics = 16 // of one connection

func newConnection(client, server *net.TCPConn) *connection {
	return &connection{
		client: client, server: server,
		up: make(chan *toxics.ToxicWrapper, maxToxics), down: make(chan *toxics.ToxicWrapper, maxToxics),
	}
}

func (c *connection) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

// poison adds toxics to c.
func (c *connection) poison(toxics []Toxic) {
	for _, t := range toxics {
		c.toxic = true
		if t.Type == "reset_peer" {
			_ = c.client.SetLinger(0) // closing it sends a reset
			_ = c.server.SetLinger(0)
		}
		to := c.down
		if t.Upstream {
			to = c.up
		}
		to <- t.wrapper()
	}
}

// pass returns when both directions have ended. The end of one ends the other.
func (c *connection) pass() {
	var group sync.WaitGroup
	group.Go(func() { c.way(&group, c.server, c.client, c.up) })
	group.Go(func() { c.way(&group, c.client, c.server, c.down) })
	group.Wait()
}

// way copies from src to dst until one of them hangs up, or a toxic ends it.
func (c *connection) way(group *sync.WaitGroup, dst, src net.Conn, added <-chan *toxics.ToxicWrapper) {
	defer c.close()
	head := make(chunks)
	group.Go(func() { read(head, src) })
	tail := head
	for {
		select {
		case t := <-added:
			tail = add(group, t, tail)
		case chunk := <-tail:
			if chunk == nil {
				return
			}
			select {
			case t := <-added: // t may be older than chunk: select chooses at random
				tail = add(group, t, prepend(group, chunk, tail))
				continue
			default:
			}
			if _, err := dst.Write(chunk.Data); err != nil {
				c.close()
				drain(tail)
				return
			}
		}
	}
}

// add returns the output of t, fed from input.
func add(group *sync.WaitGroup, t *toxics.ToxicWrapper, input chunks) chunks {
	next := make(chunks, t.BufferSize)
	link := toxics.NewToxicStub(input, next)
	if stateful, ok := t.Toxic.(toxics.StatefulToxic); ok {
		link.State = stateful.NewState()
	}
	group.Go(func() {
		link.Run(t)
		drain(input) // the writer before it must not block
	})
	return next
}

// prepend returns a channel of first, followed by the chunks of rest.
func prepend(group *sync.WaitGroup, first *stream.StreamChunk, tail chunks) chunks {
	out := make(chunks)
	group.Go(func() {
		defer close(out)
		out <- first
		for chunk := range tail {
			out <- chunk
		}
	})
	return out
}

func read(to chunks, src net.Conn) {
	defer close(to)
	for {
		buf := make([]byte, 32<<10)
		n, err := src.Read(buf)
		if n > 0 {
			to <- &stream.StreamChunk{Data: buf[:n], Timestamp: time.Now()}
		}
		if err != nil {
			return
		}
	}
}

func drain(c chunks) {
	for range c {
	}
}
