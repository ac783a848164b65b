package middleware

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/felixge/httpsnoop"

	"github.com/weir-go/weir/throttler"
)

// response is what becomes of a request that was charged.
type response struct {
	throttle *throttle
	request  *http.Request
	header   http.Header
	d        throttler.Decision // as last known
	cost     *reportedCost
	begun    bool // its status is on the way
	closed   bool // refunded or settled: once
}

// serveCharged runs next for a request that d has charged.
func (t *throttle) serveCharged(w http.ResponseWriter, r *http.Request, next http.Handler, d throttler.Decision) {
	t.writeHeaders(w.Header(), d)
	r, cost := withCost(r)
	res := &response{throttle: t, request: r, header: w.Header(), d: d, cost: cost}
	finished := false
	defer func() {
		if !finished { // a panic goes on after this
			res.giveBack()
		}
	}()
	next.ServeHTTP(res.wrap(w), r)
	finished = true
	res.begin(http.StatusOK) // for a handler that wrote nothing
	res.settle()
}

// wrap returns w, with the same optional interfaces, telling res when the
// status is about to go out.
func (res *response) wrap(w http.ResponseWriter) http.ResponseWriter {
	return httpsnoop.Wrap(w, httpsnoop.Hooks{
		WriteHeader: func(next httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc {
			return func(status int) { res.begin(status); next(status) }
		},
		Write: func(next httpsnoop.WriteFunc) httpsnoop.WriteFunc {
			return func(b []byte) (int, error) { res.begin(http.StatusOK); return next(b) }
		},
		ReadFrom: func(next httpsnoop.ReadFromFunc) httpsnoop.ReadFromFunc {
			return func(src io.Reader) (int64, error) { res.begin(http.StatusOK); return next(src) }
		},
		Flush: func(next httpsnoop.FlushFunc) httpsnoop.FlushFunc {
			return func() { res.begin(http.StatusOK); next() }
		},
		Hijack: func(next httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter, error) { res.begun = true; return next() }
		},
	})
}

// begin is called before the status goes out: the last moment at which the
// headers can still tell what the response really cost.
func (res *response) begin(status int) {
	if res.begun || status < 200 && status != http.StatusSwitchingProtocols {
		return // 1xx are not the response yet
	}
	res.begun = true
	if res.throttle.RefundIf(res.request, status, res.header) {
		res.giveBack()
	} else {
		res.settle()
	}
	if res.closed {
		res.throttle.writeHeaders(res.header, res.d)
	}
	if name := res.throttle.CostHeader; name != "" {
		res.header.Del(name) // a message to us, unless it comes as a trailer
	}
}

func (res *response) giveBack() {
	if !res.closed {
		res.closed = true
		res.d = res.throttle.refund(res.request, res.d)
	}
}

// settle settles to the cost that the handler has reported, if it has.
func (res *response) settle() {
	if res.closed {
		return
	}
	costs, reported := res.costs()
	if !reported {
		return
	}
	res.closed = true
	res.d = res.throttle.settle(res.request, res.d, costs)
}
