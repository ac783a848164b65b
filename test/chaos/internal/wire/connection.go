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
func (c *connection) poison(all []Toxic) {
	for _, t := range all {
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
	var all sync.WaitGroup
	all.Go(func() { c.way(&all, c.server, c.client, c.up) })
	all.Go(func() { c.way(&all, c.client, c.server, c.down) })
	all.Wait()
}

// way copies from src to dst until one of them hangs up, or a toxic ends it.
func (c *connection) way(all *sync.WaitGroup, dst, src net.Conn, more <-chan *toxics.ToxicWrapper) {
	defer c.close()
	head := make(chunks)
	all.Go(func() { read(head, src) })
	tail := head
	for {
		select {
		case t := <-more:
			tail = add(all, t, tail)
		case chunk := <-tail:
			if chunk == nil {
				return
			}
			select {
			case t := <-more: // t may be older than chunk: select chooses at random
				tail = add(all, t, prepend(all, chunk, tail))
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
func add(all *sync.WaitGroup, t *toxics.ToxicWrapper, input chunks) chunks {
	next := make(chunks, t.BufferSize)
	link := toxics.NewToxicStub(input, next)
	if stateful, ok := t.Toxic.(toxics.StatefulToxic); ok {
		link.State = stateful.NewState()
	}
	all.Go(func() {
		link.Run(t)
		drain(input) // the writer before it must not block
	})
	return next
}

// prepend returns a channel of first, followed by the chunks of rest.
func prepend(all *sync.WaitGroup, first *stream.StreamChunk, rest chunks) chunks {
	out := make(chunks)
	all.Go(func() {
		defer close(out)
		out <- first
		for chunk := range rest {
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
