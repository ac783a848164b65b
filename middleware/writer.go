package middleware

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// writer is the http.ResponseWriter that handlers see. ledger.writer adds Flush, Hijack
// and Push if the server's writer has them, and only then: handlers ask for them to learn
// what the connection can do. The rest is always there. Without WriteString and ReadFrom,
// io.WriteString and io.Copy would do the same by Write.
type writer struct{ *ledger }

func (w writer) Header() http.Header                   { return w.header() }
func (w writer) WriteHeader(status int)                { w.writeHeader(status) }
func (w writer) Write(p []byte) (int, error)           { return w.write(p) }
func (w writer) WriteString(s string) (int, error)     { return w.writeString(s) }
func (w writer) ReadFrom(src io.Reader) (int64, error) { return w.readFrom(src) }
func (w writer) Unwrap() http.ResponseWriter           { return controlled{w} }

// CloseNotify is deprecated, but gin.Context.Stream panics without it. Where the server's
// writer does not have it, it never notifies.
func (w writer) CloseNotify() <-chan bool {
	if n, ok := w.w.(interface{ CloseNotify() <-chan bool }); ok {
		return n.CloseNotify()
	}
	return nil
}

// controlled is where http.ResponseController looks for what writer lacks. It has
// Flush and Hijack whatever the server's writer has, because the controller would
// look further, in writers that this one unwraps to, and pass the ledger by.
type controlled struct{ writer }

func (w controlled) FlushError() error                            { return w.flush() }
func (w controlled) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }
func (w controlled) EnableFullDuplex() error                      { return w.enableFullDuplex() }
func (w controlled) Unwrap() http.ResponseWriter                  { return w.w }

// writer returns a writer with the methods that l.w has: a type for each combination,
// because a method that a type has cannot be taken from it. They are all one pointer, which
// an interface holds without an allocation. A writer that hijacks is HTTP/1's, which
// pushes nothing, so no type does both.
func (l *ledger) writer() http.ResponseWriter {
	w := writer{l}
	_, flushes := l.w.(http.Flusher)
	_, hijacks := l.w.(http.Hijacker)
	_, pushes := l.w.(http.Pusher)
	switch {
	case flushes && hijacks:
		return writerFH{writerF{w}}
	case flushes && pushes:
		return writerFP{writerF{w}}
	case flushes:
		return writerF{w}
	case hijacks:
		return writerH{w}
	case pushes:
		return writerP{w}
	}
	return w
}

// writerF can flush, writerFH also hijack, and writerFP also push.
type (
	writerF  struct{ writer }
	writerH  struct{ writer }
	writerP  struct{ writer }
	writerFH struct{ writerF }
	writerFP struct{ writerF }
)

func (w writerF) Flush()            { _ = w.flush() } // as http.Flusher has it
func (w writerF) FlushError() error { return w.flush() }

func (w writerH) Hijack() (net.Conn, *bufio.ReadWriter, error)  { return w.hijack() }
func (w writerFH) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

func (w writerP) Push(target string, o *http.PushOptions) error  { return w.push(target, o) }
func (w writerFP) Push(target string, o *http.PushOptions) error { return w.push(target, o) }
