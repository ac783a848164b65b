package middleware

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
)

// writer returns the http.ResponseWriter that handlers see: c, or a type that adds Flush,
// Hijack and Push if, and only if, the server's writer has them: handlers look for them to
// learn what the connection can do. Each combination is a type, because a type can't lose a
// method. The types are all one pointer, which an interface holds without an allocation. No
// type has both Hijack and Push: a writer with Hijack is HTTP/1's, which can't push.
func (c *chain) writer() http.ResponseWriter {
	switch c.w.(type) {
	case interface {
		http.Flusher
		http.Hijacker
	}:
		return writerFH{writerF{c}}
	case interface {
		http.Flusher
		http.Pusher
	}:
		return writerFP{writerF{c}}
	case http.Flusher:
		return writerF{c}
	case http.Hijacker:
		return writerH{c}
	case http.Pusher:
		return writerP{c}
	}
	return c
}

// writerF can flush, writerFH also hijack, and writerFP also push.
type (
	writerF  struct{ *chain }
	writerH  struct{ *chain }
	writerP  struct{ *chain }
	writerFH struct{ writerF }
	writerFP struct{ writerF }
)

func (w writerF) Flush()            { _ = w.flush() } // http.Flusher returns no error
func (w writerF) FlushError() error { return w.flush() }

func (w writerH) Hijack() (net.Conn, *bufio.ReadWriter, error)  { return w.hijack() }
func (w writerFH) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

func (w writerP) Push(target string, o *http.PushOptions) error  { return w.push(target, o) }
func (w writerFP) Push(target string, o *http.PushOptions) error { return w.push(target, o) }

// controlled has the methods that http.ResponseController does not find in a chain. It has
// Flush and Hijack even if the server's writer does not. Otherwise the controller would find
// them in a writer that this one unwraps to, and bypass the chain.
type controlled struct{ *chain }

func (w controlled) FlushError() error                            { return w.flush() }
func (w controlled) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }
func (w controlled) EnableFullDuplex() error                      { return w.enableFullDuplex() }
func (w controlled) Unwrap() http.ResponseWriter                  { return w.w }

// Unwrap returns a controlled of c.
func (c *chain) Unwrap() http.ResponseWriter { return controlled{c} }

// find returns the first T among w and the writers that it unwraps to.
func find[T any](w http.ResponseWriter) (found T, ok bool) {
	for {
		if found, ok = w.(T); ok {
			return found, true
		}
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return found, false
		}
		w = wrapper.Unwrap()
	}
}

// Header returns the header of the response. ReverseProxy fills in the header of an
// upgrade after it has hijacked the connection, and reads it again to send it.
func (c *chain) Header() http.Header {
	h := c.w.Header()
	if c.sent.Load() == hijacked {
		c.readCostHeaders()
		c.writeHeaders(h)
	}
	return h
}

// WriteHeader begins the response, if status is not one of the 1xx that come before it.
func (c *chain) WriteHeader(status int) {
	switch {
	case c.sent.Load() != nothing && c.drops(0):
		return
	case c.sent.Load() != nothing: // net/http logs the mistake
	case status >= 200 && status <= 999, status == http.StatusSwitchingProtocols:
		c.begin(status)
	default: // 1xx, or a status that net/http panics at
		c.readCostHeaders()
		c.clearHeaders(c.w.Header())
	}
	c.w.WriteHeader(status)
}

// Write begins the response and writes to its body.
func (c *chain) Write(p []byte) (int, error) {
	c.begin(http.StatusOK)
	if c.drops(len(p)) {
		return len(p), nil
	}
	return c.w.Write(p)
}

// WriteString is there because io.WriteString would copy s for Write.
func (c *chain) WriteString(s string) (int, error) {
	c.begin(http.StatusOK)
	if c.drops(len(s)) {
		return len(s), nil
	}
	return io.WriteString(c.w, s)
}

// ReadFrom copies from src. The response begins with src's first byte, so that a source that
// fails before it leaves room for an error.
func (c *chain) ReadFrom(src io.Reader) (int64, error) {
	var copied int64
	if c.sent.Load() == nothing {
		const first = 512 // as net/http itself copies to learn the content type
		n, err := io.CopyN(struct{ io.Writer }{c}, src, first)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		copied = n
	}
	if c.drops(0) {
		return copied, nil
	}
	n, err := io.Copy(c.w, src) // by c.w's ReadFrom, if it has one
	return copied + n, err
}

// CloseNotify is deprecated, but gin.Context.Stream panics without it. If the server's writer
// lacks it, the channel is nil.
func (c *chain) CloseNotify() <-chan bool {
	if n, ok := c.w.(interface{ CloseNotify() <-chan bool }); ok {
		return n.CloseNotify()
	}
	return nil
}

// flush flushes with http.ResponseController, which also finds a Flusher behind writers that
// only unwrap.
func (c *chain) flush() error {
	_, flushes := find[http.Flusher](c.w)
	_, fails := find[interface{ FlushError() error }](c.w)
	if flushes || fails {
		c.begin(http.StatusOK)
	}
	return http.NewResponseController(c.w).Flush()
}

// hijack hands over the connection. If that fails, the response has not begun.
func (c *chain) hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		c.sent.Store(hijacked)
	}
	return conn, buffered, err
}

func (c *chain) enableFullDuplex() error {
	err := http.NewResponseController(c.w).EnableFullDuplex()
	c.fullDuplex.Store(err == nil)
	return err
}

func (c *chain) push(target string, o *http.PushOptions) error {
	return c.w.(http.Pusher).Push(target, o)
}
