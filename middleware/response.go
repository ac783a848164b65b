package middleware

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"
)

// writer returns the http.ResponseWriter that handlers see: l, or a type that adds Flush,
// Hijack and Push if, and only if, the server's writer has them: handlers look for them to
// learn what the connection can do. Each combination is a type, because a type can't lose a
// method. The types are all one pointer, which an interface holds without an allocation. No
// type has both Hijack and Push: a writer with Hijack is HTTP/1's, which can't push.
func (l *ledger) writer() http.ResponseWriter {
	_, flushes := l.w.(http.Flusher)
	_, hijacks := l.w.(http.Hijacker)
	_, pushes := l.w.(http.Pusher)
	switch {
	case flushes && hijacks:
		return writerFH{writerF{l}}
	case flushes && pushes:
		return writerFP{writerF{l}}
	case flushes:
		return writerF{l}
	case hijacks:
		return writerH{l}
	case pushes:
		return writerP{l}
	}
	return l
}

// writerF can flush, writerFH also hijack, and writerFP also push.
type (
	writerF  struct{ *ledger }
	writerH  struct{ *ledger }
	writerP  struct{ *ledger }
	writerFH struct{ writerF }
	writerFP struct{ writerF }
)

func (w writerF) Flush()            { _ = w.flush() } // http.Flusher returns no error
func (w writerF) FlushError() error { return w.flush() }

func (w writerH) Hijack() (net.Conn, *bufio.ReadWriter, error)  { return w.hijack() }
func (w writerFH) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

func (w writerP) Push(target string, o *http.PushOptions) error  { return w.push(target, o) }
func (w writerFP) Push(target string, o *http.PushOptions) error { return w.push(target, o) }

// controlled has the methods that http.ResponseController does not find in a ledger. It has
// Flush and Hijack even if the server's writer does not. Otherwise the controller would find
// them in a writer that this one unwraps to, and bypass the ledger.
type controlled struct{ *ledger }

func (w controlled) FlushError() error                            { return w.flush() }
func (w controlled) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }
func (w controlled) EnableFullDuplex() error                      { return w.enableFullDuplex() }
func (w controlled) Unwrap() http.ResponseWriter                  { return w.w }

// Unwrap returns a controlled of l.
func (l *ledger) Unwrap() http.ResponseWriter { return controlled{l} }

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
func (l *ledger) Header() http.Header {
	h := l.w.Header()
	if l.sent.Load() == hijacked {
		l.running().readCostHeaders(l.w.Header)
		l.writeHeaders(h)
	}
	return h
}

// WriteHeader begins the response, if status is not one of the 1xx that come before it.
func (l *ledger) WriteHeader(status int) {
	switch {
	case l.sent.Load() == hijacked:
		l.complain("response.WriteHeader on hijacked connection")
		return
	case l.sent.Load() == begun:
		l.complain("superfluous response.WriteHeader call")
		return
	case status >= 200 && status <= 999, status == http.StatusSwitchingProtocols:
		l.begin(status)
	default: // 1xx, or a status that net/http panics at
		l.running().readCostHeaders(l.w.Header)
		l.clearHeaders(l.w.Header())
	}
	l.w.WriteHeader(status)
}

// Write begins the response and writes to its body.
func (l *ledger) Write(p []byte) (int, error) {
	if err := l.beginToWrite(len(p)); err != nil {
		return 0, err
	}
	return l.w.Write(p)
}

// WriteString is there because io.WriteString would copy s for Write.
func (l *ledger) WriteString(s string) (int, error) {
	if err := l.beginToWrite(len(s)); err != nil {
		return 0, err
	}
	return io.WriteString(l.w, s)
}

func (l *ledger) beginToWrite(length int) error {
	if l.sent.Load() != hijacked {
		l.begin(http.StatusOK)
		return nil
	}
	if length > 0 {
		l.complain("response.Write on hijacked connection")
	}
	return http.ErrHijacked
}

// ReadFrom copies from src. The response begins with src's first byte, so that a source that
// fails before it leaves room for an error.
func (l *ledger) ReadFrom(src io.Reader) (int64, error) {
	var copied int64
	if l.sent.Load() == nothing {
		const first = 512 // as net/http itself copies to learn the content type
		n, err := io.CopyN(struct{ io.Writer }{l}, src, first)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		copied = n
	}
	n, err := io.Copy(l.w, src) // by l.w's ReadFrom, if it has one
	return copied + n, err
}

// CloseNotify is deprecated, but gin.Context.Stream panics without it. If the server's writer
// lacks it, the channel is nil.
func (l *ledger) CloseNotify() <-chan bool {
	if n, ok := l.w.(interface{ CloseNotify() <-chan bool }); ok {
		return n.CloseNotify()
	}
	return nil
}

// flush flushes with http.ResponseController, which also finds a Flusher behind writers that
// only unwrap.
func (l *ledger) flush() error {
	_, flushes := find[http.Flusher](l.w)
	_, fails := find[interface{ FlushError() error }](l.w)
	if flushes || fails {
		l.begin(http.StatusOK)
	}
	return http.NewResponseController(l.w).Flush()
}

// hijack hands over the connection. If that fails, the response has not begun.
func (l *ledger) hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(l.w).Hijack()
	if err == nil {
		l.sent.Store(hijacked)
	}
	return conn, buffered, err
}

func (l *ledger) enableFullDuplex() error {
	err := http.NewResponseController(l.w).EnableFullDuplex()
	l.fullDuplex.Store(err == nil)
	return err
}

func (l *ledger) push(target string, o *http.PushOptions) error {
	return l.w.(http.Pusher).Push(target, o)
}

// complain logs the message that net/http would log if the call reached it. net/http would
// name this file as the caller.
func (l *ledger) complain(what string) {
	server := serverOf(l.first.received)
	if server == nil || l.first.received.ProtoMajor != 1 {
		return // net/http's HTTP/2 says nothing, and others are unknown
	}
	logf := log.Printf
	if server.ErrorLog != nil {
		logf = server.ErrorLog.Printf
	}
	caller := callerOutside("net/http.", "github.com/weir-go/weir/middleware.")
	logf("http: %s from %s (%s:%d)", what, caller.Function, path.Base(caller.File), caller.Line)
}

// callerOutside returns the first stack frame of a function that does not begin with one of
// prefixes.
func callerOutside(prefixes ...string) runtime.Frame {
	pc := make([]uintptr, 16)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	for {
		frame, more := frames.Next()
		inside := func(prefix string) bool { return strings.HasPrefix(frame.Function, prefix) }
		if !slices.ContainsFunc(prefixes, inside) || !more {
			return frame
		}
	}
}
