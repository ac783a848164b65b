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
	"strings"
)

// writeHeader is WriteHeader of all writers.
func (l *ledger) writeHeader(status int) {
	switch {
	case l.sent.Load() == hijacked:
		l.complain("response.WriteHeader on hijacked connection")
		return
	case l.sent.Load() == begun:
		l.complain("superfluous response.WriteHeader call")
		return
	case status >= 200 && status <= 999, status == http.StatusSwitchingProtocols:
		l.begin(status)
	default: // 1xx are not the response yet, and net/http panics at others
		l.running().readCostHeaders(l.w.Header)
		l.clearHeaders(l.w.Header())
	}
	l.w.WriteHeader(status)
}

// complain logs what net/http would log if the call reached it, which would name
// this file as the caller.
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

// callerOutside returns the first frame of the stack whose function does not
// begin with one of prefixes.
func callerOutside(prefixes ...string) runtime.Frame {
	pc := make([]uintptr, 16)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	for {
		frame, more := frames.Next()
		inside := false
		for _, p := range prefixes {
			inside = inside || strings.HasPrefix(frame.Function, p)
		}
		if !inside || !more {
			return frame
		}
	}
}

// header is Header of all writers. ReverseProxy fills in the header of an upgrade
// after it has hijacked the connection, and reads it again to send it.
func (l *ledger) header() http.Header {
	h := l.w.Header()
	if l.sent.Load() == hijacked {
		l.running().readCostHeaders(l.w.Header)
		l.writeHeaders(h)
	}
	return h
}

func (l *ledger) write(p []byte) (int, error) {
	if l.sent.Load() == hijacked {
		return 0, l.writeHijacked(len(p))
	}
	l.begin(http.StatusOK)
	return l.w.Write(p)
}

func (l *ledger) writeString(s string) (int, error) {
	if l.sent.Load() == hijacked {
		return 0, l.writeHijacked(len(s))
	}
	l.begin(http.StatusOK)
	return io.WriteString(l.w, s)
}

func (l *ledger) writeHijacked(length int) error {
	if length > 0 {
		l.complain("response.Write on hijacked connection")
	}
	return http.ErrHijacked
}

// readFrom copies from src. The response begins with src's first byte: a source
// that fails before leaves room for an error.
func (l *ledger) readFrom(src io.Reader) (int64, error) {
	var copied int64
	if l.sent.Load() == nothing {
		const first = 512 // what net/http itself copies to learn the content type
		n, err := io.CopyN(struct{ io.Writer }{writer{l}}, src, first)
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

// flush flushes by http.ResponseController, which finds a Flusher also behind
// writers that only unwrap.
func (l *ledger) flush() error {
	if canFlush(l.w) {
		l.begin(http.StatusOK)
	}
	return http.NewResponseController(l.w).Flush()
}

func canFlush(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case interface{ FlushError() error }, http.Flusher:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// hijack hands the connection over. If that fails, it is no response.
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
