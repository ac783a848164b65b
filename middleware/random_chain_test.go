package middleware_test

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// TestRandomChains sends requests through random stacks, and compares each count with a
// model. Handlers between the middlewares call the next one several times, or replace a
// refusal by another response.
func TestRandomChains(t *testing.T) {
	t.Parallel()
	first := testseed.Of(t)
	for n := range *randomStacks {
		seed := testseed.Nth(first, uint64(n))
		rng := rand.New(rand.NewPCG(seed, 2))
		m := newChainModel(rng)
		th, _ := newThrottler()
		var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(m.code) })
		for i := range slices.Backward(m.layers) {
			h = m.layers[i].wrap(th, h)
		}
		s := start(t, rng.IntN(3) == 0, h, nil)
		for i := range 6 {
			m.code = []int{200, 304, 404, 500}[rng.IntN(4)]
			res, _ := s.get(t, "/")
			if want := m.request(); res.StatusCode != want {
				t.Errorf("WEIR_SEED=%d -stacks 1, request %d: status %d, want %d", seed, i, res.StatusCode, want)
			}
			for _, l := range m.layers {
				if l.policy == nil {
					continue
				}
				if got := used(t, th, l.policy, "everyone"); got != l.used {
					t.Errorf("WEIR_SEED=%d -stacks 1, request %d: %s used %d, want %d", seed, i, l.policy.Name, got, l.used)
				}
			}
			if t.Failed() {
				for _, l := range m.layers {
					t.Logf("%+v", *l)
				}
				t.Fatalf("the handler sends %d", m.code)
			}
		}
		s.Close()
	}
}

// layerOfChain is a middleware, or a handler between two.
type layerOfChain struct {
	kind    string            // "limit", "none", "fan" or "fallback"
	policy  *throttler.Policy // of a limit
	dry     bool
	keep    bool // NoRefund
	quota   int64
	cost    int64
	used    int64 // by the model
	times   int   // number of calls by a fan to the next handler
	instead int   // status that a fallback sends instead of 429
}

// chainModel is a stack and a model of its counts.
type chainModel struct {
	layers []*layerOfChain
	code   int // status of the handler at the end
}

// linkModel is one pass of a request through a limit.
type linkModel struct {
	layer    *layerOfChain
	inner    *linkModel
	charged  bool
	answered bool
	ran      bool // a handler ran behind it, and not behind inner
}

func (l *linkModel) refused() bool {
	return l.answered || !l.ran && l.inner != nil && l.inner.refused()
}

// settle settles l and the links behind it. code is the response's status, or 0 if another call
// replaces l.
func (l *linkModel) settle(code int) {
	if l.inner != nil {
		l.inner.settle(code)
	}
	refused := l.refused() && (code == 0 || code >= 400)
	if l.charged && (refused && !l.layer.dry || !refused && code == 304 && !l.layer.keep) {
		l.layer.used -= l.layer.cost
	}
}

func newChainModel(rng *rand.Rand) *chainModel {
	m := &chainModel{}
	random := func() { m.add(rng, []string{"limit", "limit", "limit", "none", "fan", "fallback"}[rng.IntN(6)]) }
	if rng.IntN(2) == 0 {
		for range 2 + rng.IntN(5) {
			random()
		}
		return m
	}
	// Tries behind a limit, which pass a dry run and a limit until the last limit refuses them: few
	// stacks of random layers have all of these in this order.
	dry := 2 + rng.IntN(2)
	for i, kind := range []string{"limit", "fan", "limit", "limit", "limit"} {
		if rng.IntN(6) == 0 {
			random()
		}
		l := m.add(rng, kind)
		switch i {
		case 1:
			l.times = 2 + rng.IntN(2)
		case dry:
			l.dry = true
		case 4:
			l.dry = false
			l.setQuota(1 + rng.Int64N(3))
		}
	}
	return m
}

// add adds a layer of that kind.
func (m *chainModel) add(rng *rand.Rand, kind string) *layerOfChain {
	l := &layerOfChain{kind: kind}
	switch kind {
	case "limit":
		l.policy = policy("p"+strconv.Itoa(len(m.layers)), per(1, time.Hour))
		l.setQuota([]int64{1, 3, 8, 100}[rng.IntN(4)])
		l.cost = 1 + rng.Int64N(2)
		l.dry, l.keep = rng.IntN(5) == 0, rng.IntN(4) == 0
	case "fan":
		l.times = rng.IntN(4)
	case "fallback":
		l.instead = []int{200, 304, 503}[rng.IntN(3)]
	}
	m.layers = append(m.layers, l)
	return l
}

func (l *layerOfChain) setQuota(units int64) { l.quota, l.policy.Limits[0].Quota = units, units }

func (l *layerOfChain) wrap(th *throttler.Throttler, next http.Handler) http.Handler {
	switch l.kind {
	case "none":
		return must(newMiddleware(th, charging(), nil))(next)
	case "fan":
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			code := 200
			for range l.times {
				part := httptest.NewRecorder()
				next.ServeHTTP(part, r.Clone(r.Context()))
				code = max(code, part.Code)
			}
			w.WriteHeader(code)
		})
	case "fallback":
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			if next.ServeHTTP(rec, r); rec.Code == 429 {
				rec.Code = l.instead
			}
			w.WriteHeader(rec.Code)
		})
	}
	options := &middleware.Options{}
	if l.dry {
		options.DryRun = func(*http.Request, throttler.Decision) {}
	}
	classify := charging(throttler.Charge{Policy: l.policy, Key: "everyone", Cost: l.cost})
	if l.keep {
		classify = classify.NoRefund()
	}
	return must(newMiddleware(th, classify, options))(next)
}

// request runs the model for one request and returns the response's status.
func (m *chainModel) request() int { return m.pass(0, nil) }

func (m *chainModel) pass(i int, outer *linkModel) int {
	if i == len(m.layers) {
		return m.code
	}
	switch l := m.layers[i]; l.kind {
	case "none":
		if outer != nil {
			outer.ran = true
		}
		return m.pass(i+1, outer)
	case "fan":
		code := 200
		for range l.times {
			code = max(code, m.pass(i+1, outer))
		}
		return code
	case "fallback":
		if code := m.pass(i+1, outer); code != 429 {
			return code
		}
		return l.instead
	default:
		n := &linkModel{layer: l}
		if n.charged = l.used+l.cost <= l.quota; n.charged {
			l.used += l.cost
		}
		n.answered = !n.charged && !l.dry
		if outer != nil {
			if before := outer.inner; before != nil {
				before.settle(0)
				outer.ran = outer.ran || !before.refused()
			}
			outer.inner = n
		}
		if n.answered {
			return 429
		}
		code := m.pass(i+1, n)
		if outer == nil {
			n.settle(code)
		}
		return code
	}
}
