package middleware_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

var randomStacks = flag.Int("stacks", 150, "how many random stacks to try")

// TestRandomStacks sends requests through random stacks of middlewares to random
// handlers, over real connections, and compares each count with a model.
func TestRandomStacks(t *testing.T) {
	t.Parallel()
	first := testseed.Of(t)
	for n := range *randomStacks {
		seed := testseed.Nth(first, uint64(n))
		rng := rand.New(rand.NewPCG(seed, 1))
		http2 := rng.IntN(3) == 0
		m := newModel(rng, http2)
		m.th = throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(t0)})
		m.dead = throttler.New(down{}, nil)
		stack := http.Handler(http.HandlerFunc(m.handle))
		for i := range slices.Backward(m.layers) {
			stack = m.wrap(&m.layers[i], stack)
		}
		s := start(t, http2, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if v := recover(); v != nil {
					panic(http.ErrAbortHandler) // logs nothing
				}
			}()
			stack.ServeHTTP(w, r)
		}), nil)
		s.Client().Transport.(*http.Transport).DisableKeepAlives = !http2 // a POST on a closing connection is not repeated
		for i := range 8 {
			m.ops = m.randomOps(rng)
			status, header := m.send(t, s)
			m.predict()
			m.compare(t, fmt.Sprintf("WEIR_SEED=%d -stacks 1, request %d", seed, i), status, header)
			if t.Failed() {
				t.Fatalf("http2 %v, layers %+v\nops %v", http2, m.layers, m.ops)
			}
		}
		s.Close()
	}
}

// layer is a middleware of the stack, or a handler between two.
type layer struct {
	kind   string // "limit", "invalid", "open", "closed"; "recover", "timeout", "wrap"
	dry    bool
	policy *throttler.Policy
	quota  int64
	cost   int64
	keep   bool // NoRefund
	asks   bool // CostReported
	free   bool // RefundIf refunds errors of the server

	used    int64 // by the model
	charged bool
	settled bool
	report  int64 // -1 if none
	named   int64 // reported under the policy's name, takes precedence; -1 if none
}

// op is a step of the handler.
type op struct {
	what string
	n    int64
}

type model struct {
	layers   []layer
	th, dead *throttler.Throttler
	ops      []op
	buffered bool // a TimeoutHandler is in the stack
	http2    bool

	left  chan context.CancelFunc
	ran   bool
	notes []string // unexpected results that the handler saw

	// The model's view of the last request.
	status  int // 0 if the connection broke, or was hijacked
	unknown bool
}

func newModel(rng *rand.Rand, http2 bool) *model {
	m := &model{http2: http2, left: make(chan context.CancelFunc, 1)}
	limits := 1 + rng.IntN(4)
	for i := range limits {
		if rng.IntN(3) == 0 {
			between := []string{"recover", "timeout", "wrap"}[rng.IntN(3)]
			if between != "timeout" || i > 0 && !m.buffered {
				m.layers = append(m.layers, layer{kind: between})
				m.buffered = m.buffered || between == "timeout"
			}
		}
		l := layer{kind: "limit", dry: rng.IntN(4) == 0, quota: []int64{2, 6, 1000}[rng.IntN(3)], cost: 1 + rng.Int64N(3), keep: rng.IntN(3) == 0, asks: rng.IntN(2) == 0}
		l.free = !l.keep && rng.IntN(2) == 0
		if rng.IntN(10) == 0 {
			l.kind = []string{"invalid", "open", "closed"}[rng.IntN(3)]
		}
		l.policy = policy("p"+strconv.Itoa(i), per(l.quota, time.Hour))
		m.layers = append(m.layers, l)
	}
	return m
}

func (m *model) wrap(l *layer, next http.Handler) http.Handler {
	switch l.kind {
	case "recover":
		return recoverer(next)
	case "timeout":
		return http.TimeoutHandler(next, time.Minute, "")
	case "wrap":
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(unwrapping{w}, r) })
	}
	log, _ := newLog()
	options := &middleware.Options{Observer: log, Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}
	if l.dry {
		options.DryRun = func(*http.Request, throttler.Decision) {}
	}
	if l.asks {
		options.CostHeader = "X-Cost"
	}
	if l.free {
		options.RefundIf = func(_ *http.Request, status int, _ http.Header) bool { return l.isFree(status) }
	}
	th, charge := m.th, throttler.Charge{Policy: l.policy, Key: "everyone", Cost: l.cost}
	switch l.kind {
	case "invalid":
		charge.Cost = -1
	case "open":
		th = m.dead
	case "closed":
		th, options.FailClosed = m.dead, true
	}
	classify := charging(charge)
	if l.keep {
		classify = classify.NoRefund()
	}
	if l.asks {
		classify = classify.CostReported()
	}
	return must(newMiddleware(th, classify, options))(next)
}

func (m *model) randomOps(rng *rand.Rand) []op {
	all := []string{"header", "cost", "costheader", "costof", "status", "status", "status", "write", "string", "copy", "read"}
	if !m.buffered {
		all = append(all, "hint", "flush", "controlflush", "left")
		if !m.http2 {
			all = append(all, "hijack")
		}
	}
	if rng.IntN(4) == 0 {
		all = append(all, "panic", "panic")
	}
	var ops []op
	for range rng.IntN(6) {
		o := op{what: all[rng.IntN(len(all))], n: rng.Int64N(8)}
		if o.what == "status" {
			o.n = []int64{200, 201, 304, 404, 500}[rng.IntN(5)]
		}
		ops = append(ops, o)
		if o.what == "panic" || o.what == "hijack" || o.what == "left" {
			break
		}
	}
	if len(ops) > 0 && ops[len(ops)-1].what == "left" && rng.IntN(2) == 0 {
		ops = append(ops, op{what: []string{"panic", "status", "cost"}[rng.IntN(3)], n: 304})
	}
	return ops
}

// handle is the handler at the end of the stack.
func (m *model) handle(w http.ResponseWriter, r *http.Request) {
	m.ran = true
	for _, o := range m.ops {
		switch o.what {
		case "header":
			w.Header().Set("X-RateLimit-Used", "77")
			w.Header()["ratelimit"] = []string{"nonsense"}
		case "cost":
			_ = middleware.SetCost(r, o.n)
		case "costof":
			_ = middleware.SetCostOf(r, "p1", o.n)
		case "costheader":
			w.Header().Set("X-Cost", strconv.FormatInt(o.n, 10))
		case "status":
			w.WriteHeader(int(o.n))
		case "hint":
			w.WriteHeader(103)
		case "write":
			_, _ = w.Write([]byte("x"))
		case "string":
			_, _ = io.WriteString(w, "x")
		case "copy":
			_, _ = io.Copy(w, bytes.NewReader([]byte("x")))
		case "read":
			if r.ProtoMajor == 1 { // in HTTP/2, a client with a response stops sending
				_, _ = io.CopyN(io.Discard, r.Body, o.n)
			}
		case "flush":
			if f, ok := w.(http.Flusher); ok {
				f.Flush()
			} else {
				_ = http.NewResponseController(w).Flush()
			}
		case "controlflush":
			_ = http.NewResponseController(w).Flush()
		case "hijack":
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				conn.Close()
			} else {
				m.notes = append(m.notes, "hijack: "+err.Error())
			}
		case "left":
			if r.ProtoMajor == 1 {
				_, _ = io.Copy(io.Discard, r.Body) // only then does net/http watch the client
			}
			(<-m.left)()
			<-r.Context().Done()
		case "panic":
			panic("of the handler")
		}
	}
}

// send sends a request and returns the response's status and header, or status 0 if it failed.
func (m *model) send(t *testing.T, s *server) (int, http.Header) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m.ran, m.notes = false, nil
	select {
	case <-m.left:
	default:
	}
	m.left <- cancel
	r := must(http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader("0123456789")))
	res, err := s.Client().Do(r)
	var status int
	var header http.Header
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		status, header = res.StatusCode, res.Header
		if err != nil {
			status = 0 // it broke off
		}
	}
	soon(t, s.done, fmt.Sprintf("http2 %v, layers %+v\nops %v", m.http2, m.layers, m.ops))
	return status, header
}

// limits calls f for each middleware, the outermost first, until it returns false.
func (m *model) limits(f func(l *layer) bool) {
	for i := range m.layers {
		if m.layers[i].policy != nil && !f(&m.layers[i]) {
			return
		}
	}
}

// predict runs the model for one request.
func (m *model) predict() {
	m.status, m.unknown = 0, false
	answered := 0
	m.limits(func(l *layer) bool {
		l.charged, l.settled, l.report, l.named = false, false, -1, -1
		return true
	})
	m.limits(func(l *layer) bool {
		switch {
		case l.kind == "limit" && l.used+l.cost <= l.quota:
			l.used += l.cost
			l.charged = true
		case l.dry:
		case l.kind == "limit":
			answered = 429
		case l.kind == "invalid":
			answered, m.unknown = 500, true
		case l.kind == "closed":
			answered, m.unknown = 503, true
		case l.kind == "open":
			m.unknown = true
		}
		return answered == 0
	})
	if answered != 0 {
		m.status = answered
		m.limits(func(l *layer) bool {
			if !l.dry && l.charged {
				l.used -= l.cost
				l.charged = false
			}
			return true
		})
		return
	}
	m.predictHandler()
}

func (m *model) predictHandler() {
	sent, left, costHeader := false, false, int64(-1)
	begin := func(status int) {
		if sent {
			return
		}
		sent = true
		m.status = status
		m.fromHeader(costHeader)
		costHeader = -1
		m.limits(func(l *layer) bool {
			if l.isFree(status) && !left {
				l.settle(true)
			} else if l.reported() {
				l.settle(false)
			}
			return true
		})
	}
	panicked := false
	// A TimeoutHandler holds the response back until the handler returns.
	held := 0
	response := func(status int) {
		if !m.buffered {
			begin(status)
		} else if held == 0 {
			held = status
		}
	}
	hijacked := false
	for _, o := range m.ops {
		switch o.what {
		case "cost":
			m.setCost(o.n)
		case "costof":
			m.setCostOf("p1", o.n)
		case "costheader":
			costHeader = o.n // after the response has begun, it is a trailer
		case "hint":
			if !sent {
				m.fromHeader(costHeader)
				costHeader = -1
			}
		case "status":
			response(int(o.n))
		case "write", "string", "copy", "flush", "controlflush":
			response(200)
		case "hijack":
			sent, hijacked = true, true
			m.status = 0
		case "left":
			left = true
		case "panic":
			panicked = true
		}
	}
	if panicked {
		recovered, inside := m.panics(sent, left, costHeader)
		if !recovered {
			m.status = 0
			return
		}
		if held == 0 || !inside {
			held = 500 // the recoverer writes it, unless a response is held back
		}
	}
	if held == 0 {
		held = 200
	}
	begin(held)
	m.fromHeader(costHeader)
	m.limits(func(l *layer) bool { // reported after the response began
		if l.reported() {
			l.settle(false)
		}
		return true
	})
	if hijacked || left && m.status != 0 {
		m.status = -1 // the client may see any outcome
	}
}

// panics passes a panic from the innermost layer outwards. It reports whether a
// layer recovers it, and whether that layer is inside a TimeoutHandler.
func (m *model) panics(sent, left bool, costHeader int64) (recovered, inside bool) {
	m.fromHeader(costHeader)
	inside = m.buffered
	for i := len(m.layers) - 1; i >= 0; i-- {
		l := &m.layers[i]
		switch {
		case l.kind == "recover":
			return true, inside
		case l.kind == "timeout":
			inside = false
		case l.policy != nil && l.reported():
			l.settle(false)
		}
		if l.policy != nil && !sent && !left && !inside { // and nothing will be sent
			for j := i; j < len(m.layers); j++ {
				if m.layers[j].free {
					m.layers[j].settle(true)
				}
			}
		}
	}
	return false, false
}

// fromHeader reports the cost header's value to all layers that read it.
func (m *model) fromHeader(cost int64) {
	if cost < 0 {
		return
	}
	m.limits(func(l *layer) bool {
		if l.asks && !l.settled && l.charged {
			l.report = cost
		}
		return true
	})
}

func (m *model) setCost(cost int64) {
	enforced := false
	for i := len(m.layers) - 1; i >= 0; i-- {
		l := &m.layers[i]
		if l.policy == nil || !l.asks || !l.dry && enforced {
			continue
		}
		enforced = enforced || !l.dry
		if l.charged && !l.settled {
			l.report = cost
		}
	}
}

// setCostOf reports a cost for one policy. It takes precedence over a cost for all.
func (m *model) setCostOf(policy string, cost int64) {
	m.limits(func(l *layer) bool {
		if l.policy.Name == policy && l.charged && !l.settled {
			l.named = cost
		}
		return true
	})
}

func (l *layer) reported() bool { return l.report >= 0 || l.named >= 0 }

func (l *layer) isFree(status int) bool { return status == 304 || l.free && status == 500 }

func (l *layer) settle(free bool) {
	if !l.charged || l.settled {
		return
	}
	l.settled = true
	cost := l.cost
	if l.report >= 0 {
		cost = l.report
	}
	if l.named >= 0 {
		cost = l.named
	}
	if free && !l.keep {
		cost = 0
	}
	l.used += cost - l.cost
}

// compare checks the counts, and the status and headers of the response.
func (m *model) compare(t *testing.T, at string, status int, header http.Header) {
	t.Helper()
	if len(m.notes) > 0 {
		t.Errorf("%s: %v", at, m.notes)
	}
	if m.status > 0 && status != m.status {
		t.Errorf("%s: status %d, want %d", at, status, m.status)
	}
	var names []string
	m.limits(func(l *layer) bool {
		if got := used(t, m.th, l.policy, "everyone"); got != l.used {
			t.Errorf("%s: %s used %d, want %d", at, l.policy.Name, got, l.used)
		}
		if !l.dry {
			names = append(names, l.policy.Name)
		}
		return true
	})
	if m.status <= 0 || status == 0 {
		return
	}
	if header.Get("X-Cost") != "" && slices.ContainsFunc(m.layers, func(l layer) bool { return l.asks }) {
		t.Errorf("%s: the cost was sent to the client", at)
	}
	switch value := header.Values("X-RateLimit-Used"); {
	case len(names) == 0: // only the handler may have set it
	case m.unknown && len(value) > 0:
		t.Errorf("%s: rate headers %v though a decision is missing", at, value)
	case !m.unknown && (len(value) != 1 || value[0] == "77"):
		t.Errorf("%s: X-RateLimit-Used is %v", at, value)
	case !m.unknown && m.status != 429:
		for _, name := range names {
			if n := strings.Count(header.Get("RateLimit"), strconv.Quote(name)+";"); n != 1 {
				t.Errorf("%s: RateLimit is %s; want %s once", at, header.Get("RateLimit"), name)
			}
		}
	}
}
