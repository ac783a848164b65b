package middleware

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A waiting request's body is read ahead up to readAhead bytes, and the bodies of all
// waiting requests of a middleware up to allReadAhead.
const (
	readAhead    = 256 << 10
	allReadAhead = 64 << 20
)

// sendGrace is how long a client that is turned away may go on sending its body.
// If the connection were closed at once, it might not see the response.
const sendGrace = 500 * time.Millisecond

// aheadBody is a request body that is read ahead while its request waits. In
// HTTP/1, net/http notices that a client has left only when it reads: while the
// body is unread, a client could leave a queue and be served all the same.
type aheadBody struct {
	io.ReadCloser // what was not read ahead
	limit         int64
	filled        chan struct{} // closed when no more is read ahead

	mu      sync.Mutex
	buf     []byte // read ahead, not yet passed on
	err     error  // that ended the reading
	stopped bool   // read no further
}

// readAhead begins to read body, r's body, ahead. It returns nil if there is no
// need, or no memory, or the client waits for a 100 Continue, or a read could not be
// broken off by w, the server's writer.
func (s *waiters) readAhead(w http.ResponseWriter, r *http.Request, body io.ReadCloser) *aheadBody {
	if r.ProtoMajor != 1 || !hasBody(r) || strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		return nil
	}
	if _, ok := find[interface{ SetReadDeadline(time.Time) error }](w); !ok {
		return nil
	}
	limit := int64(readAhead)
	if r.ContentLength > 0 {
		limit = min(limit, r.ContentLength)
	}
	if s.ahead.Add(limit) > allReadAhead {
		s.ahead.Add(-limit)
		return nil
	}
	b := &aheadBody{ReadCloser: body, limit: limit, filled: make(chan struct{})}
	go b.fill() // until stop, or until net/http ends the request
	return b
}

func (b *aheadBody) fill() {
	chunk := make([]byte, 4<<10)
	for more := true; more; {
		n, err := b.ReadCloser.Read(chunk)
		b.mu.Lock()
		b.buf, b.err = append(b.buf, chunk[:n]...), err
		more = !b.stopped && err == nil && int64(len(b.buf)) <= b.limit // the handler takes none before it is stopped
		if !more {
			close(b.filled)
		}
		b.mu.Unlock()
	}
}

// stop ends the reading ahead, and reports whether the body may have more to
// read. A read in progress goes on, for the handler's sake.
func (b *aheadBody) stop() (more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	return b.err == nil
}

// breakOff breaks a read in progress off after grace, because net/http sends no
// response before it has ended. It reports whether there was one. The connection
// cannot be used again.
func (b *aheadBody) breakOff(w http.ResponseWriter, grace time.Duration) (broken bool) {
	b.mu.Lock()
	b.stopped = true
	select {
	case <-b.filled:
	default:
		broken = http.NewResponseController(w).SetReadDeadline(time.Now().Add(grace)) == nil
	}
	b.mu.Unlock()
	if broken {
		<-b.filled
	}
	return broken
}

// Read passes on what was read ahead, also while more is read.
func (b *aheadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	waits := len(b.buf) == 0
	b.mu.Unlock()
	if waits {
		<-b.filled
	}
	b.mu.Lock()
	n, empty, err := copy(p, b.buf), len(b.buf) == 0, b.err
	if b.buf = b.buf[n:]; len(b.buf) == 0 {
		b.buf = nil
	}
	b.mu.Unlock()
	switch {
	case !empty:
		return n, nil
	case err != nil:
		return 0, err
	}
	return b.ReadCloser.Read(p)
}
