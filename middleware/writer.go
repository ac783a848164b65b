package middleware

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// writer is the http.ResponseWriter that handlers see. ledger.writer adds the
// optional interfaces that the server's has, and only these: handlers ask for
// them to learn what the connection can do. WriteString is always there, because
// without it io.WriteString does the same by Write.
type writer struct{ *ledger }

func (w writer) Header() http.Header               { return w.header() }
func (w writer) WriteHeader(status int)            { w.writeHeader(status) }
func (w writer) Write(p []byte) (int, error)       { return w.write(p) }
func (w writer) WriteString(s string) (int, error) { return w.writeString(s) }
func (w writer) Unwrap() http.ResponseWriter       { return controlled{w} }

// controlled is where http.ResponseController looks for what writer lacks. It has
// Flush and Hijack whatever the server's writer has, because the controller would
// look further, in writers that this one unwraps to, and pass the ledger by.
type controlled struct{ writer }

func (w controlled) FlushError() error                            { return w.flush() }
func (w controlled) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }
func (w controlled) EnableFullDuplex() error                      { return w.enableFullDuplex() }
func (w controlled) Unwrap() http.ResponseWriter                  { return w.w }

// notifier is http.CloseNotifier, which is deprecated and still asked for.
type notifier interface{ CloseNotify() <-chan bool }

// What a writer can do.
const (
	flushes = 1 << iota
	hijacks
	pushes
	notifies
	copies
)

func abilities(w http.ResponseWriter) int {
	can := 0
	if _, ok := w.(http.Flusher); ok {
		can |= flushes
	}
	if _, ok := w.(http.Hijacker); ok {
		can |= hijacks
	}
	if _, ok := w.(http.Pusher); ok {
		can |= pushes
	}
	if _, ok := w.(notifier); ok {
		can |= notifies
	}
	if _, ok := w.(io.ReaderFrom); ok {
		can |= copies
	}
	return can
}

// writer returns a writer with these abilities: a type for each combination,
// because a method that a type has cannot be taken from it. They are all one
// pointer, which an interface holds without an allocation.
func (l *ledger) writer(can int) http.ResponseWriter {
	w := writer{l}
	switch can {
	case 0:
		return w
	case flushes:
		return writerF{w}
	case hijacks:
		return writerH{w}
	case flushes | hijacks:
		return writerFH{writerF{w}}
	case pushes:
		return writerP{w}
	case flushes | pushes:
		return writerFP{writerF{w}}
	case hijacks | pushes:
		return writerHP{writerH{w}}
	case flushes | hijacks | pushes:
		return writerFHP{writerFH{writerF{w}}}
	case notifies:
		return writerC{w}
	case flushes | notifies:
		return writerFC{writerF{w}}
	case hijacks | notifies:
		return writerHC{writerH{w}}
	case flushes | hijacks | notifies:
		return writerFHC{writerFH{writerF{w}}}
	case pushes | notifies:
		return writerPC{writerP{w}}
	case flushes | pushes | notifies:
		return writerFPC{writerFP{writerF{w}}}
	case hijacks | pushes | notifies:
		return writerHPC{writerHP{writerH{w}}}
	case flushes | hijacks | pushes | notifies:
		return writerFHPC{writerFHP{writerFH{writerF{w}}}}
	case copies:
		return writerR{w}
	case flushes | copies:
		return writerFR{writerF{w}}
	case hijacks | copies:
		return writerHR{writerH{w}}
	case flushes | hijacks | copies:
		return writerFHR{writerFH{writerF{w}}}
	case pushes | copies:
		return writerPR{writerP{w}}
	case flushes | pushes | copies:
		return writerFPR{writerFP{writerF{w}}}
	case hijacks | pushes | copies:
		return writerHPR{writerHP{writerH{w}}}
	case flushes | hijacks | pushes | copies:
		return writerFHPR{writerFHP{writerFH{writerF{w}}}}
	case notifies | copies:
		return writerCR{writerC{w}}
	case flushes | notifies | copies:
		return writerFCR{writerFC{writerF{w}}}
	case hijacks | notifies | copies:
		return writerHCR{writerHC{writerH{w}}}
	case flushes | hijacks | notifies | copies:
		return writerFHCR{writerFHC{writerFH{writerF{w}}}}
	case pushes | notifies | copies:
		return writerPCR{writerPC{writerP{w}}}
	case flushes | pushes | notifies | copies:
		return writerFPCR{writerFPC{writerFP{writerF{w}}}}
	case hijacks | pushes | notifies | copies:
		return writerHPCR{writerHPC{writerHP{writerH{w}}}}
	case flushes | hijacks | pushes | notifies | copies:
		return writerFHPCR{writerFHPC{writerFHP{writerFH{writerF{w}}}}}
	}
	panic("unreachable")
}

// writerF can flush, writerFH also hijack, and so on: P pushes, C has
// CloseNotify, R has ReadFrom. Each adds one method to another.
type writerF struct{ writer }

func (w writerF) Flush()            { _ = w.flush() } // as http.Flusher has it
func (w writerF) FlushError() error { return w.flush() }

type (
	writerH  struct{ writer }
	writerFH struct{ writerF }
)

func (w writerH) Hijack() (net.Conn, *bufio.ReadWriter, error)  { return w.hijack() }
func (w writerFH) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

type (
	writerP   struct{ writer }
	writerFP  struct{ writerF }
	writerHP  struct{ writerH }
	writerFHP struct{ writerFH }
)

func (w writerP) Push(target string, o *http.PushOptions) error   { return w.push(target, o) }
func (w writerFP) Push(target string, o *http.PushOptions) error  { return w.push(target, o) }
func (w writerHP) Push(target string, o *http.PushOptions) error  { return w.push(target, o) }
func (w writerFHP) Push(target string, o *http.PushOptions) error { return w.push(target, o) }

type (
	writerC    struct{ writer }
	writerFC   struct{ writerF }
	writerHC   struct{ writerH }
	writerFHC  struct{ writerFH }
	writerPC   struct{ writerP }
	writerFPC  struct{ writerFP }
	writerHPC  struct{ writerHP }
	writerFHPC struct{ writerFHP }
)

func (w writerC) CloseNotify() <-chan bool    { return w.closeNotify() }
func (w writerFC) CloseNotify() <-chan bool   { return w.closeNotify() }
func (w writerHC) CloseNotify() <-chan bool   { return w.closeNotify() }
func (w writerFHC) CloseNotify() <-chan bool  { return w.closeNotify() }
func (w writerPC) CloseNotify() <-chan bool   { return w.closeNotify() }
func (w writerFPC) CloseNotify() <-chan bool  { return w.closeNotify() }
func (w writerHPC) CloseNotify() <-chan bool  { return w.closeNotify() }
func (w writerFHPC) CloseNotify() <-chan bool { return w.closeNotify() }

type (
	writerR     struct{ writer }
	writerFR    struct{ writerF }
	writerHR    struct{ writerH }
	writerFHR   struct{ writerFH }
	writerPR    struct{ writerP }
	writerFPR   struct{ writerFP }
	writerHPR   struct{ writerHP }
	writerFHPR  struct{ writerFHP }
	writerCR    struct{ writerC }
	writerFCR   struct{ writerFC }
	writerHCR   struct{ writerHC }
	writerFHCR  struct{ writerFHC }
	writerPCR   struct{ writerPC }
	writerFPCR  struct{ writerFPC }
	writerHPCR  struct{ writerHPC }
	writerFHPCR struct{ writerFHPC }
)

func (w writerR) ReadFrom(src io.Reader) (int64, error)     { return w.readFrom(src) }
func (w writerFR) ReadFrom(src io.Reader) (int64, error)    { return w.readFrom(src) }
func (w writerHR) ReadFrom(src io.Reader) (int64, error)    { return w.readFrom(src) }
func (w writerFHR) ReadFrom(src io.Reader) (int64, error)   { return w.readFrom(src) }
func (w writerPR) ReadFrom(src io.Reader) (int64, error)    { return w.readFrom(src) }
func (w writerFPR) ReadFrom(src io.Reader) (int64, error)   { return w.readFrom(src) }
func (w writerHPR) ReadFrom(src io.Reader) (int64, error)   { return w.readFrom(src) }
func (w writerFHPR) ReadFrom(src io.Reader) (int64, error)  { return w.readFrom(src) }
func (w writerCR) ReadFrom(src io.Reader) (int64, error)    { return w.readFrom(src) }
func (w writerFCR) ReadFrom(src io.Reader) (int64, error)   { return w.readFrom(src) }
func (w writerHCR) ReadFrom(src io.Reader) (int64, error)   { return w.readFrom(src) }
func (w writerFHCR) ReadFrom(src io.Reader) (int64, error)  { return w.readFrom(src) }
func (w writerPCR) ReadFrom(src io.Reader) (int64, error)   { return w.readFrom(src) }
func (w writerFPCR) ReadFrom(src io.Reader) (int64, error)  { return w.readFrom(src) }
func (w writerHPCR) ReadFrom(src io.Reader) (int64, error)  { return w.readFrom(src) }
func (w writerFHPCR) ReadFrom(src io.Reader) (int64, error) { return w.readFrom(src) }
