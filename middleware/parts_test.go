package middleware_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// Handlers between two middlewares that call the inner one several times, or replace
// its response.

// copyTo sends the recorded response.
func copyTo(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
	for name, values := range rec.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}

func TestWhatRanIsChargedThoughAnotherPartIsRefused(t *testing.T) {
	const parts = 6
	for name, between := range map[string]func(http.Handler) http.HandlerFunc{
		"a batch of clones": func(h http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				code := 200
				for range parts {
					rec := httptest.NewRecorder()
					h.ServeHTTP(rec, r.Clone(r.Context()))
					code = max(code, rec.Code)
				}
				w.WriteHeader(code)
			}
		},
		"a batch of requests that it makes up": func(h http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				code := 200
				for i := range parts {
					rec := httptest.NewRecorder()
					h.ServeHTTP(rec, httptest.NewRequest("GET", "/items/"+strconv.Itoa(i), nil).WithContext(r.Context()))
					code = max(code, rec.Code)
				}
				w.WriteHeader(code)
			}
		},
		"parallel parts": func(h http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				var all sync.WaitGroup
				for range parts {
					all.Go(func() { h.ServeHTTP(httptest.NewRecorder(), r) }) // one request for all, since no handler changes it
				}
				all.Wait()
				w.WriteHeader(429)
			}
		},
		"parts of a page": func(h http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				for range parts {
					h.ServeHTTP(w, r)
				}
			}
		},
		"more attempts": func(h http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				for {
					rec := httptest.NewRecorder()
					if h.ServeHTTP(rec, r); rec.Code < 500 {
						copyTo(w, rec)
						return
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			th, _ := newThrottler()
			outer, middle, inner := policy("outer", per(100, time.Minute)), policy("middle", per(100, time.Minute)), policy("inner", per(5, time.Minute))
			var ran atomic.Int64
			code := 200
			if name == "more attempts" {
				code = 502
			}
			h := limit(th, inner, nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				ran.Add(1)
				w.WriteHeader(code)
			}))
			s := start(t, false, limit(th, outer, nil)(between(limit(th, middle, nil)(h))), nil)
			res, _ := s.get(t, "/")
			if ran.Load() != 5 {
				t.Errorf("%d handlers ran on a quota of 5", ran.Load())
			}
			expectUsed(t, th, inner, 5)
			if res.StatusCode >= 400 { // the part that was refused costs nothing
				expectUsed(t, th, middle, 5)
			}
			expectUsed(t, th, outer, 1)
			expectHeaders(t, res.Header, "X-RateLimit-Resource", "inner")
			// Nothing runs: nothing is charged.
			res, _ = s.get(t, "/")
			if ran.Load() != 5 || res.StatusCode != 429 {
				t.Errorf("then %d ran, status %d", ran.Load(), res.StatusCode)
			}
			expectHeaders(t, res.Header, "X-RateLimit-Resource", "inner", "X-RateLimit-Remaining", "0")
			expectUsed(t, th, inner, 5)
			expectUsed(t, th, outer, 1)
		})
	}
}

// The inner middleware does not charge every request.
func TestWhatRanUnchargedCountsAsWell(t *testing.T) {
	th, _ := newThrottler()
	outer, inner := policy("outer", per(100, time.Minute)), policy("inner", per(1, time.Minute))
	some := middleware.ClassifierFunc(func(r *http.Request) []throttler.Charge {
		if r.Method == "HEAD" {
			return nil
		}
		return []throttler.Charge{inner.Charge("everyone")}
	})
	h := must(newMiddleware(th, some, nil))(status(200))
	_, _ = th.Take(t.Context(), inner.Charge("everyone"))
	both := limit(th, outer, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := r.Clone(r.Context())
		head.Method = "HEAD"
		h.ServeHTTP(httptest.NewRecorder(), head)
		h.ServeHTTP(w, r)
	}))
	expect(t, get(both), 429, "X-RateLimit-Resource", "inner")
	expectUsed(t, th, outer, 1)
}

func TestARefusalThatIsNotSentRefundsNothing(t *testing.T) {
	for _, test := range []struct {
		name    string
		refused http.HandlerFunc // in place of the refusal
		outer   int64
	}{
		{"a page of old", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "stale") }, 1},
		{"nothing", func(http.ResponseWriter, *http.Request) {}, 1},
		{"a redirect", status(302), 1},
		{"503", status(503), 0},
		{"404", status(404), 0},
		{"304, which RefundIf says is free", status(304), 0},
		{"the refusal", nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			th, _ := newThrottler()
			outer, dry, inner := policy("outer", per(100, time.Minute)), policy("dry", per(100, time.Minute)), policy("inner", per(1, time.Minute))
			next := limit(th, inner, nil)(status(200))
			_, _ = th.Take(t.Context(), inner.Charge("everyone"))
			fallback := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rec := httptest.NewRecorder()
				if next.ServeHTTP(rec, r); rec.Code == 429 && test.refused != nil {
					test.refused(w, r)
					return
				}
				copyTo(w, rec)
			})
			h := limit(th, outer, nil)(limit(th, dry, &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}})(fallback))
			res, _ := start(t, false, h, nil).get(t, "/")
			// The headers show the state after it.
			expectHeaders(t, res.Header, "X-RateLimit-Resource", "inner", "X-RateLimit-Remaining", "0", "X-RateLimit-Used", "1")
			expectUsed(t, th, outer, test.outer)
			expectUsed(t, th, inner, 1)
		})
	}
}

// A handler that made a part sees the values that are set in the part's request.
func TestEachLevelSeesWhatWasSetFurtherIn(t *testing.T) {
	th, _ := newThrottler()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /items/{id}", func(http.ResponseWriter, *http.Request) {})
	h := limit(th, policy("inner", per(100, time.Minute)), nil)(mux)
	get(limit(th, policy("outer", per(100, time.Minute)), nil)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, id := range []string{"1", "2"} {
			part := r.Clone(r.Context())
			part.URL.Path = "/items/" + id
			h.ServeHTTP(httptest.NewRecorder(), part)
			if part.PathValue("id") != id {
				t.Errorf("id %q, want %q", part.PathValue("id"), id)
			}
		}
	})))
}

func TestPartsKeepTheirOwnCosts(t *testing.T) {
	th, _ := newThrottler()
	inner := policy("inner", per(1000, time.Minute))
	h := must(newMiddleware(th, everyone(inner).CostReported(), &middleware.Options{CostHeader: "X-Cost"}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			w.Header().Set("X-Cost", "10")
		} else if err := middleware.SetCost(r, 100); err != nil {
			t.Error(err)
		}
	}))
	get(limit(th, policy("outer", per(100, time.Minute)), nil)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, method := range []string{"GET", "POST", "GET"} {
			part := r.Clone(r.Context())
			part.Method = method
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, part)
			expect(t, rec, 200, "X-Cost", "")
		}
	})))
	expectUsed(t, th, inner, 120)
}

// A handler in between may cancel a part's context before the response begins.
func TestA304OfAPartWhoseContextIsOverIsFree(t *testing.T) {
	th, _ := newThrottler()
	outer, inner := policy("outer", per(100, time.Minute)), policy("inner", per(100, time.Minute))
	h := limit(th, inner, nil)(status(304))
	expect(t, get(limit(th, outer, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r.WithContext(ctx))
		cancel()
		copyTo(w, rec)
	}))), 304, "X-RateLimit-Used", "0")
	expectUsed(t, th, inner, 0)
	expectUsed(t, th, outer, 0)
}

// A request of a part that has ended leads to the middlewares further out.
func TestSetCostOfAPolicyFurtherOut(t *testing.T) {
	th, _ := newThrottler()
	outer, inner := policy("outer", per(100, time.Minute)), policy("inner", per(100, time.Minute))
	var kept *http.Request
	behind := limit(th, inner, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "rows")
		kept = r
	}))
	get(limit(th, outer, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		behind.ServeHTTP(w, r)
		if err := middleware.SetCostOf(kept, "outer", 50); err != nil {
			t.Error(err)
		}
	})))
	expectUsed(t, th, outer, 50)
}

// A handler that tries again replaces its first try. If the first was refused further in, the
// middlewares that it passed keep nothing for it, except dry runs.
func TestARefusedTryThatIsReplacedCostsNothing(t *testing.T) {
	for _, second := range []int{429, 200} {
		t.Run("then "+strconv.Itoa(second), func(t *testing.T) {
			th, _ := newThrottler()
			outer, middle, inner := policy("outer", per(100, time.Minute)), policy("middle", per(100, time.Minute)), policy("inner", per(1, time.Minute))
			before, behind := policy("before", per(100, time.Minute)), policy("behind", per(100, time.Minute)) // dry runs
			dry := &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}}
			h := limit(th, behind, dry)(limit(th, inner, nil)(status(200)))
			h = limit(th, before, dry)(limit(th, middle, nil)(h))
			_, _ = th.Take(t.Context(), inner.Charge("everyone"))
			twice := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				first := httptest.NewRecorder()
				h.ServeHTTP(first, r)
				expect(t, first, 429)
				if second == 200 {
					_ = th.Reset(t.Context(), inner.Charge("everyone"))
				}
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, r)
				copyTo(w, rec)
			})
			expect(t, get(limit(th, outer, nil)(twice)), second)
			served := int64(0)
			if second == 200 {
				served = 1
			}
			expectUsed(t, th, outer, served)
			expectUsed(t, th, middle, served)
			expectUsed(t, th, inner, 1)
			expectUsed(t, th, before, 2)
			expectUsed(t, th, behind, 2)
		})
	}
}
