package middleware_test

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// TestRandomTrees sends requests through random stacks, and compares each count with a
// model. Handlers between the middlewares call the next one several times, or replace a
// refusal by another response.
func TestRandomTrees(t *testing.T) {
	t.Parallel()
	first := testseed.Of(t)
	for n := range *randomStacks {
		seed := first + uint64(n)
		rng := rand.New(rand.NewPCG(seed, 2))
		m := newTreeModel(rng)
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

// treeLayer is a middleware, or a handler between two.
type treeLayer struct {
	kind     string            // "limit", "none", "fan" or "fallback"
	policy   *throttler.Policy // of a limit
	dry      bool
	keep     bool // NoRefund
	quota    int64
	cost     int64
	used     int64 // by the model
	times    int   // number of calls by a fan to the next handler
	parallel bool
	instead  int // status that a fallback sends instead of 429
}

// treeModel is a stack and a model of its counts.
type treeModel struct {
	layers []*treeLayer
	code   int         // status of the handler at the end
	nodes  []*treeNode // behind the outermost limit
}

// treeNode is one pass of a request through a limit.
type treeNode struct {
	layer               *treeLayer
	outer               *treeNode
	charged, answered   bool
	innerRan, innerDont bool
}

func newTreeModel(rng *rand.Rand) *treeModel {
	m := &treeModel{}
	for i := range 2 + rng.IntN(5) {
		l := &treeLayer{kind: []string{"limit", "limit", "limit", "none", "fan", "fallback"}[rng.IntN(6)]}
		switch l.kind {
		case "limit":
			l.policy = policy("p"+strconv.Itoa(i), per([]int64{1, 3, 8, 100}[rng.IntN(4)], time.Hour))
			l.quota, l.cost = l.policy.Limits[0].Quota, 1+rng.Int64N(2)
			l.dry, l.keep = rng.IntN(5) == 0, rng.IntN(4) == 0
		case "fan":
			l.times = rng.IntN(4)
		case "fallback":
			l.instead = []int{200, 304, 503}[rng.IntN(3)]
		}
		m.layers = append(m.layers, l)
	}
	// Behind a limit and a single fan, the order of the parts makes no difference.
	limited := false
	var fans []*treeLayer
	for _, l := range m.layers {
		limited = limited || l.kind == "limit"
		if l.kind == "fan" {
			fans = append(fans, l)
			l.parallel = limited && rng.IntN(2) == 0
		}
	}
	if len(fans) > 1 {
		for _, l := range fans {
			l.parallel = false
		}
	}
	return m
}

func (l *treeLayer) wrap(th *throttler.Throttler, next http.Handler) http.Handler {
	switch l.kind {
	case "none":
		return must(newMiddleware(th, charging(), nil))(next)
	case "fan":
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var all sync.WaitGroup
			parts := make([]*httptest.ResponseRecorder, l.times)
			for i := range parts {
				parts[i] = httptest.NewRecorder()
				all.Go(func() { next.ServeHTTP(parts[i], r.Clone(r.Context())) })
				if !l.parallel {
					all.Wait()
				}
			}
			all.Wait()
			code := 200
			for _, part := range parts {
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
func (m *treeModel) request() int { return m.pass(0, nil) }

// end settles the charges behind one outermost limit, which sends code.
func (m *treeModel) end(code int) {
	for _, n := range slices.Backward(m.nodes) {
		refused := n.answered || n.innerDont && !n.innerRan
		if n.outer != nil {
			n.outer.innerRan = n.outer.innerRan || !refused
			n.outer.innerDont = n.outer.innerDont || refused
		}
		switch {
		case !n.charged, refused && code >= 400 && n.layer.dry:
		case refused && code >= 400, code == 304 && !n.layer.keep:
			n.layer.used -= n.layer.cost
		}
	}
	m.nodes = nil
}

func (m *treeModel) pass(i int, outer *treeNode) int {
	if i == len(m.layers) {
		return m.code
	}
	switch l := m.layers[i]; l.kind {
	case "none":
		if outer != nil {
			outer.innerRan = true
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
		n := &treeNode{layer: l, outer: outer}
		m.nodes = append(m.nodes, n)
		if n.charged = l.used+l.cost <= l.quota; n.charged {
			l.used += l.cost
		} else if !l.dry {
			n.answered = true
			if outer == nil {
				m.nodes = nil
			}
			return 429
		}
		code := m.pass(i+1, n)
		if outer == nil {
			m.end(code)
		}
		return code
	}
}
