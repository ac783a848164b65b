package middleware

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// requestBody is the body of a charged request. It notes how far it was read.
type requestBody struct {
	io.ReadCloser
	read   atomic.Uint32 // unread, partly or toEnd
	closed atomic.Bool
	failed atomic.Bool // it could not be read: the client stopped, or sent what is not a body
}

// Values of requestBody.read.
const (
	unread = iota
	partly
	toEnd
)

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err != nil:
		b.read.Store(toEnd)
		if !errors.Is(err, io.EOF) && !b.closed.Load() { // reading a closed body is no fault of the client
			b.failed.Store(true)
		}
	case n > 0:
		b.read.CompareAndSwap(unread, partly)
	}
	return n, err
}

func (b *requestBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// closeIfPartlyRead makes net/http close the connection after an error whose
// handler has not read the body to its end. http.MaxBytesReader asks for that by
// an unexported method of net/http's own response, which no wrapper can have.
func (l *ledger) closeIfPartlyRead(h http.Header) {
	if l.body != nil && l.body.read.Load() == partly && l.first.received.ProtoMajor == 1 {
		h.Set("Connection", "close")
	}
}
