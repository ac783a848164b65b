package middleware

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// requestBody is the body of a charged request. It records how far it was read, and is read
// ahead while the request waits. In HTTP/1, net/http notices that a client has left only when
// it reads, so without this a client could leave the queue and still be served.
type requestBody struct {
	io.ReadCloser
	read   atomic.Uint32 // unread, partly or toEnd
	closed atomic.Bool
	failed atomic.Bool // a read failed: the client stopped, or sent an invalid body

	mu      sync.Mutex
	ahead   []byte    // read ahead, not yet passed on
	err     error     // the error that ended fill
	reads   int       // by handlers, in progress
	filling bool      // fill is running
	stopped bool      // fill must end
	filled  sync.Cond // something was read ahead, or fill has ended
}

// Values of requestBody.read.
const (
	unread = iota
	partly
	toEnd
)

func newRequestBody(body io.ReadCloser) *requestBody {
	b := &requestBody{ReadCloser: body}
	b.filled.L = &b.mu
	return b
}

func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// Read returns the bytes read ahead first, even while more are being read.
func (b *requestBody) Read(p []byte) (int, error) {
	if n, ok, err := b.takeAhead(p); ok {
		return n, err
	}
	defer b.endRead()
	return b.receive(p)
}

// takeAhead reads from the bytes read ahead. If neither bytes nor an error are left, it counts
// a handler's read as begun, and returns false.
func (b *requestBody) takeAhead(p []byte) (n int, ok bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.ahead) == 0 && b.filling {
		b.filled.Wait()
	}
	if len(b.ahead) == 0 {
		if b.err == nil {
			b.reads++
		}
		return 0, b.err != nil, b.err
	}
	n = copy(p, b.ahead)
	if b.ahead = b.ahead[n:]; len(b.ahead) == 0 {
		b.ahead = nil
	}
	return n, true, nil
}

func (b *requestBody) endRead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads--
}

// receive reads from the underlying body.
func (b *requestBody) receive(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err != nil:
		b.read.Store(toEnd)
		if !errors.Is(err, io.EOF) && !b.closed.Load() { // a read of a closed body is not the client's fault
			b.failed.Store(true)
		}
	case n > 0:
		b.read.CompareAndSwap(unread, partly)
	}
	return n, err
}

// Close closes the body.
func (b *requestBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

// A waiting request's body is read ahead up to readAhead bytes, and the bodies of all
// waiting requests of a middleware up to allReadAhead.
const (
	readAhead    = 256 << 10
	allReadAhead = 64 << 20
)

// sendGrace is how long a client that is not served may continue to send its body. If the
// connection were closed at once, the client might not see the response.
const sendGrace = 500 * time.Millisecond

// readAhead begins to read ahead in the body of k's request, and returns how many bytes that
// may take. It returns 0 if there is no need or no memory, if the client waits for a 100
// Continue, or if a read could not be interrupted.
func (s *waiters) readAhead(k *take) (limit int64) {
	r, b := k.received, k.link.c.body
	if b == nil || !hasBody(r) || r.ProtoMajor != 1 || strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		return 0
	}
	if _, ok := find[interface{ SetReadDeadline(time.Time) error }](k.link.c.w); !ok {
		return 0
	}
	limit = readAhead
	if r.ContentLength > 0 {
		limit = min(limit, r.ContentLength)
	}
	if s.ahead.Add(limit) > allReadAhead || !b.begin(limit) {
		s.ahead.Add(-limit)
		return 0
	}
	return limit
}

// begin begins to read ahead, until stop, or until net/http ends the request. It returns false
// if a handler is reading, if the body is being read ahead already, or if all of it was read.
func (b *requestBody) begin(limit int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reads > 0 || b.read.Load() == toEnd || b.filling && !b.stopped {
		return false
	}
	b.stopped = false
	if !b.filling { // otherwise an earlier fill is still running
		b.filling = true
		go b.fill(limit)
	}
	return true
}

func (b *requestBody) fill(limit int64) {
	chunk := make([]byte, 4<<10)
	for again := true; again; {
		n, err := b.receive(chunk)
		b.mu.Lock()
		b.ahead, b.err = append(b.ahead, chunk[:n]...), err
		again = !b.stopped && err == nil && int64(len(b.ahead)) <= limit
		b.filling = again
		b.filled.Broadcast()
		b.mu.Unlock()
	}
}

// stop ends the reading ahead. A read in progress continues, for the handler.
func (b *requestBody) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
}

// breakOffReading interrupts a read ahead in progress after grace, because net/http sends no
// response before it has ended. It reports whether it interrupted one. If so, the connection
// can't be used again.
func (c *chain) breakOffReading(grace time.Duration) (broken bool) {
	b := c.body
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if !b.filling || http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(grace)) != nil {
		return false
	}
	for b.filling {
		b.filled.Wait()
	}
	return true
}

// endReading is called when a response with that status begins. It makes net/http close the
// connection after an error if the body was read only in part: http.MaxBytesReader asks for that by
// an unexported method of net/http's own response, which a wrapper can't implement. And it breaks off
// a read ahead, so that the response leaves at once.
func (c *chain) endReading(status int, h http.Header) {
	unfinished := status >= 400 && c.body.read.Load() == partly && c.first.received.ProtoMajor == 1
	if broken := !c.fullDuplex.Load() && c.breakOffReading(0); broken || unfinished {
		h.Set("Connection", "close")
	}
}
