package middleware

import (
	"io"
	"net/http"
	"testing"
	"time"
	"unsafe"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

func TestEachCombinationOfMethodsHasItsType(t *testing.T) {
	type (
		flusher interface{ http.Flusher }
		hijacks interface{ http.Hijacker }
		pushes  interface{ http.Pusher }
		base    = http.ResponseWriter
	)
	for _, test := range []struct {
		of                       http.ResponseWriter
		flushes, hijacks, pushes bool
	}{
		{struct{ base }{}, false, false, false},
		{struct {
			base
			flusher
		}{}, true, false, false},
		{struct {
			base
			hijacks
		}{}, false, true, false},
		{struct {
			base
			pushes
		}{}, false, false, true},
		{struct {
			base
			flusher
			hijacks
		}{}, true, true, false},
		{struct {
			base
			flusher
			pushes
		}{}, true, false, true},
		{struct {
			base
			hijacks
			pushes
		}{}, false, true, false},
		{struct {
			base
			flusher
			hijacks
			pushes
		}{}, true, true, false},
	} {
		c := &chain{w: test.of}
		w := c.writer()
		_, flushes := w.(http.Flusher)
		_, hijacks := w.(http.Hijacker)
		_, pushes := w.(http.Pusher)
		if flushes != test.flushes || hijacks != test.hijacks || pushes != test.pushes {
			t.Errorf("%T for %T: flushes %v, hijacks %v, pushes %v; want %v, %v, %v", w, test.of, flushes, hijacks, pushes, test.flushes, test.hijacks, test.pushes)
		}
		for _, w := range []any{w, controlled{c}} {
			if _, ok := w.(interface {
				io.StringWriter
				io.ReaderFrom
				CloseNotify() <-chan bool
			}); !ok {
				t.Errorf("%T lacks WriteString, ReadFrom or CloseNotify", w)
			}
		}
	}
}

// The values of a header don't change: it may be in transit when another is written, as
// by a handler that http.TimeoutHandler has given up.
func TestHeadersShareNoValues(t *testing.T) {
	c := new(chain)
	e := &c.first
	e.m, e.c, e.link = &throttle{dialects: []Dialect{GitHub{}}}, c, e
	e.add()
	write := func(used int64) http.Header {
		p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
		d := driver.NewDecision(driver.NewRequest(0, p.Charge("alice")))
		d.Results()[0].Used = used
		e.charges, e.d = d.Charges(), throttler.Decision{Decision: decision.FromDriver(d)}
		h := make(http.Header)
		c.writeHeaders(h)
		return h
	}
	first, second := write(1), write(2)
	if first.Get(headerUsed) != "1" || second.Get(headerUsed) != "2" {
		t.Errorf("got %v and %v, want 1 and 2 used", first, second)
	}
}

// Every request has a chain, which contains the request that its handler gets, and is most of the
// garbage that a request leaves.
func TestChainsAreSmall(t *testing.T) {
	if size := unsafe.Sizeof(chain{}); size > 896-8 { // a size class of the allocator, which needs 8 bytes
		t.Errorf("a chain has %d bytes, want at most %d", size, 896-8)
	}
}
