package middleware

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/weir-go/weir/observe"
)

// answer answers k's request in place of its handler. err is nil if k had no room.
func (t *throttle) answer(w http.ResponseWriter, k *take, status int, err error, message []byte) {
	x := Refusal{Status: status, Decision: k.d, Err: err, form: t.errorBody(), silent: t.silent()}
	inHandler := k != &k.link.take
	if t.Refuse == nil && !inHandler {
		x.write(w, k.received, message, message) // the middleware's texts need no escapes
		return
	}
	a := &answerWriter{ResponseWriter: w}
	if inHandler {
		defer k.link.c.answeredBy(t, a)()
	}
	if t.Refuse != nil {
		x.Message = string(message)
		if t.Refuse(a, k.received, x); a.responded() {
			return
		}
		if !t.silenceWarned.Swap(true) {
			t.Observer.Warned(observe.Warned{
				Text: "Options.Refuse writes nothing, so that Refusal.Write does in its place",
				Hint: "Refuse must write a response to w, or be left out",
			})
		}
	}
	x.write(a, k.received, message, message)
}

// answerWriter notes what is written.
type answerWriter struct {
	http.ResponseWriter
	begun bool
	bytes int64
}

// responded reports whether there is a response. One that was written past w, as by the context of a
// framework, is known if the framework's writer tells.
func (w *answerWriter) responded() bool {
	if f, ok := find[interface{ Written() bool }](w.ResponseWriter); ok && f.Written() {
		return true
	}
	return w.begun
}

func (w *answerWriter) WriteHeader(status int) {
	w.begun = w.begun || status >= 200 || status == http.StatusSwitchingProtocols
	w.ResponseWriter.WriteHeader(status)
}

func (w *answerWriter) Write(p []byte) (int, error) {
	w.begun = true
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

func (w *answerWriter) Flush() { _ = w.FlushError() } // http.Flusher returns no error

func (w *answerWriter) FlushError() error {
	w.begun = true
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *answerWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.begun = w.begun || err == nil
	return conn, buffered, err
}

func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// An inPlace is a response that [Take] has written, or writes, in place of the handler's.
type inPlace struct {
	by    *throttle
	bytes atomic.Int64 // of its body, that have reached the chain
	whole atomic.Bool  // it has reached the chain, and what follows is the handler's
}

// answeredBy notes that what follows is a response that t writes to a, until the function that it
// returns is called. A writer in between, such as a compressor, may hold back a part of it.
func (c *chain) answeredBy(t *throttle, a *answerWriter) (written func()) {
	p := &inPlace{by: t}
	if c.sent.Load() != nothing || !c.inPlace.CompareAndSwap(nil, p) {
		return func() {} // it comes too late, after the handler's response or an earlier refusal
	}
	return func() {
		if c.sent.Load() == begun && p.bytes.Load() == a.bytes {
			p.whole.Store(true)
			return
		}
		c.inPlace.Store(nil)
	}
}

// drops reports whether n bytes of a handler must be dropped, because Take has written a response.
func (c *chain) drops(n int) bool {
	p := c.inPlace.Load()
	if p == nil {
		return false
	}
	if !p.whole.Load() {
		p.bytes.Add(int64(n))
		return false
	}
	if !p.by.afterWarned.Swap(true) {
		p.by.Observer.Warned(observe.Warned{
			Text: "a handler goes on after Take has written a refusal, so that what it writes is dropped",
			Hint: "handlers return when Take reports false",
		})
	}
	return true
}
