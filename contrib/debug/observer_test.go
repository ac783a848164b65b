package weirdebug

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

var began = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// newAt returns an Observer, and a function that moves its clock.
func newAt(options *Options) (*Observer, func(time.Duration) time.Time) {
	o, now := New(options), began
	o.since = began
	o.now = func() time.Time { return now }
	return o, func(d time.Duration) time.Time { now = now.Add(d); return now }
}

func (o *Observer) decide(at time.Time, outcome observe.Outcome, policy, key string, took time.Duration) {
	e := observe.Decided{Op: observe.OpTake, Outcome: outcome, Policy: policy, Start: at.Add(-took), Duration: took}
	if outcome == observe.OutcomeRefused {
		e.Binding = &quota.Limit{Quota: 5, Window: time.Minute}
		e.Key, e.RetryAt = key, at.Add(42*time.Second)
	}
	o.Decided(context.Background(), e)
}

func (o *Observer) page(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	o.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/debug/weir", nil))
	body, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 {
		t.Fatal(w.Code, err)
	}
	return string(body)
}

func TestAMinuteOfDecisions(t *testing.T) {
	o, pass := newAt(nil)
	at := began
	for second := range 10 {
		for range second {
			o.decide(at, observe.OutcomeAllowed, "core", "", 3*time.Millisecond)
		}
		at = pass(time.Second)
	}
	rows := o.view().Policies
	if len(rows) != 1 {
		t.Fatalf("rows: %+v; want one, of allowed ones", rows)
	}
	if r := rows[0]; r.Name != "core" || r.Detail != "allowed" || r.Now != 9 || r.Minute != 45 || r.Peak != 9 || r.Bad {
		t.Errorf("got %+v; want 9 in the last second and 45 in the last minute", r)
	}
	if op := o.view().Ops[0]; op.Name != "take" || op.P50 != 5*time.Millisecond || op.P99 != 5*time.Millisecond {
		t.Errorf("got %+v; want takes of at most 5ms", op)
	}
	pass(55 * time.Second) // the first five seconds are a minute ago
	if r := o.view().Policies[0]; r.Now != 0 || r.Minute != 5+6+7+8+9 {
		t.Errorf("a minute after the fifth second: %+v; want 35 in the last minute", r)
	}
	pass(time.Hour)
	if r := o.view().Policies[0]; r.Now != 0 || r.Minute != 0 {
		t.Errorf("an hour later: %+v; want none", r)
	}
}

// A decision without the shared counts has its own row besides its outcome's.
func TestDegradedDecisions(t *testing.T) {
	o, pass := newAt(nil)
	o.decide(began, observe.OutcomeAllowed, "core", "", 0)
	o.Decided(t.Context(), observe.Decided{Policy: "core", Start: began, Degraded: true})
	pass(time.Second)
	rows := o.view().Policies
	if len(rows) != 2 || rows[0].Detail != "allowed" || rows[0].Minute != 2 || rows[0].Bad || rows[1].Minute != 1 || !rows[1].Bad {
		t.Errorf("got %+v; want 2 allowed, and 1 of these without the shared counts", rows)
	}
}

func TestSparkHasAPointForEachSecond(t *testing.T) {
	path := spark([]int64{0, 5, 10}, 10)
	if want := "M0 23.0L60 12.0L120 1.0"; path != want {
		t.Errorf("got %s, want %s", path, want)
	}
}

// The most refused key is found among many keys that are refused once each. Its count is
// exact within the excess on the page.
func TestMostRefusedKeys(t *testing.T) {
	o, pass := newAt(nil)
	at := began
	const rounds = 1000
	for i := range rounds {
		o.decide(at, observe.OutcomeRefused, "core", "greedy", time.Microsecond)
		o.decide(at, observe.OutcomeRefused, "core", fmt.Sprint("other ", i), time.Microsecond)
	}
	v := o.view()
	refused := v.Keys
	if len(refused) != maxRefused {
		t.Errorf("%d keys, want %d", len(refused), maxRefused)
	}
	first := refused[0]
	if first.Count < rounds || first.Count-first.Excess > rounds || first.Policy != "core" || !strings.HasSuffix(v.Until(first.RetryAt), "(in 42s)") {
		t.Errorf("the first is %+v; want %d refusals by core, until 42s from now", first, rounds)
	}
	if sum := refused[1].Count - refused[1].Excess; sum > 1 {
		t.Errorf("the second is %+v; want a key with one refusal at least", refused[1])
	}
	if text := o.page(t); strings.Contains(text, "greedy") {
		t.Error("the page has a key")
	}
	w := httptest.NewRecorder()
	o.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/weir?format=refused", nil))
	var all Refusals
	err := json.Unmarshal(w.Body.Bytes(), &all)
	want := Refused{Policy: "core", Limit: "5 per 1m", Label: "NwrtaX3FA67O59j6", Count: first.Count, Excess: first.Excess, RetryAt: began.Add(42 * time.Second)}
	if err != nil || len(all.Keys) != maxRefused || all.Keys[0] != want || all.Missed < 1 || all.Missed > 2*rounds/maxRefused || !all.Since.Equal(began) {
		t.Errorf("as JSON: error %v, %d keys, %+v, %d missed since %v; want %+v first, and the refusals that a key may be missing with", err, len(all.Keys), all.Keys[:1], all.Missed, all.Since, want)
	}
	pass(minute)
	if got := o.view().Keys; len(got) != maxRefused || got[0].Count != first.Count {
		t.Errorf("a minute later: %d keys, the first %+v; want the same", len(got), got[0])
	}
	pass(minute)
	if got := o.view().Keys; len(got) != 0 {
		t.Errorf("two minutes later: %+v; want none", got)
	}
}

func TestLabels(t *testing.T) {
	o, _ := newAt(&Options{Label: func(policy, key string) string { return "<" + policy + "/" + key + ">" }})
	o.decide(began, observe.OutcomeRefused, "core", "acme", 0)
	if text := o.page(t); !strings.Contains(text, "&lt;core/acme&gt;") {
		t.Errorf("the page does not have the label, escaped:\n%s", text)
	}
}

func TestServersMovesAndFailures(t *testing.T) {
	o, pass := newAt(nil)
	down := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary", Open: true, Err: errors.New("i/o timeout")}
	o.Checked(down)
	o.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true, Cut: true, Lag: 1500 * time.Millisecond, Skew: -20 * time.Millisecond, SkewKnown: true})
	pass(3 * time.Second)
	o.Checked(down)
	o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Decisions: 4, Start: began, Duration: 40 * time.Millisecond})
	o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Decisions: 2, Start: began, Duration: 50 * time.Millisecond, Err: down.Err})
	o.Moved(observe.Moved{From: "redis", To: "memcached"})
	o.Moved(observe.Moved{From: "redis", To: "memcached", Lost: true})
	o.Moved(observe.Moved{From: "redis", To: "memcached", Err: errors.New("refused to move")})
	for range 3 {
		o.Failed(observe.Failed{Backend: "redisbackend", Shard: "a", Cause: "deadline exceeded", Policy: "core", Result: observe.ResultServed})
	}
	o.Warned(observe.Warned{Text: "a cost is above the quota", Policy: "core", Hint: "raise the quota"})
	o.Stats("memory", func() any { return map[string]int{"keys": 7} })
	pass(time.Second)
	text := strings.Join(strings.Fields(o.page(t)), " ")
	for _, want := range []string{
		`<tr class="bad"><td>redisbackend a primary</td><td>breaker open, since 4s ago</td>`, `i/o timeout`,
		`cut off from its primary, or too late</td><td class="n">1.5s</td><td class="n">-20ms</td>`,
		`3.0 decisions each, 1 failed`,
		`<td>redis</td><td>memcached</td><td class="n">1</td><td class="n">1</td><td class="n">1</td>`, `refused to move`,
		`<td>redisbackend a</td><td>deadline exceeded</td><td>served_without_limit</td><td class="n">3</td>`,
		`a cost is above the quota (policy core); raise the quota`,
		`<h3>memory</h3><table><tr><th scope="row" class="d0">keys</th><td class="wrap">7</td></tr>`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	o.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary"})
	if text := o.page(t); strings.Contains(text, "breaker open") {
		t.Error("the server answers, and the page says that its breaker is open")
	}
}

// A node that has left its cluster is no longer shown once others of its shard are checked, and
// it is not.
func TestANodeThatLeft(t *testing.T) {
	o, pass := newAt(nil)
	check := func(server string) { o.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: server}) }
	check("left")
	pass(time.Hour)
	if all := o.view().Servers; len(all) != 1 {
		t.Errorf("%+v; want what was known when nothing was checked", all)
	}
	check("stays")
	if all := o.view().Servers; len(all) != 1 || all[0].Server != "stays" {
		t.Errorf("%+v; want the one that stays", all)
	}
}

func TestPageRefreshesItselfAndRunsNothing(t *testing.T) {
	o, _ := newAt(nil)
	for query, refreshes := range map[string]bool{"": true, "?refresh=off": false} {
		w := httptest.NewRecorder()
		o.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/"+query, nil))
		if got := strings.Contains(w.Body.String(), `http-equiv="refresh"`); got != refreshes {
			t.Errorf("%q: refreshes is %t, want %t", query, got, refreshes)
		}
		if h := w.Header(); !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; style-src 'sha256-") || h.Get("Cache-Control") != "no-store" {
			t.Errorf("headers: %v", h)
		}
	}
}

func TestStatsAsJSON(t *testing.T) {
	o := New(nil)
	o.Stats("memory", func() any { return map[string]int{"keys": 7} })
	o.Stats("mode", func() any { return "exact" })
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		o.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/weir?format=json", nil))
		return w
	}
	w := get()
	if got, want := w.Body.String(), "{\n  \"memory\": {\n    \"keys\": 7\n  },\n  \"mode\": \"exact\"\n}"; w.Code != http.StatusOK || got != want {
		t.Errorf("got %d %s, want %s", w.Code, got, want)
	}
	if h := w.Header(); h.Get("Content-Type") != "application/json" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", h)
	}
	o.Stats("wrong", func() any { return func() {} })
	if w := get(); w.Code != http.StatusInternalServerError {
		t.Errorf("what is no JSON: got %d %s, want 500", w.Code, w.Body)
	}
}

// The number of names is bounded, whatever a program uses as names.
func TestNamesAreBounded(t *testing.T) {
	o, _ := newAt(nil)
	for i := range 2 * maxNames {
		name := fmt.Sprint(i)
		o.decide(began, observe.OutcomeAllowed, name, "", 0)
		o.Checked(observe.Checked{Server: name})
		o.Moved(observe.Moved{From: name})
		o.Failed(observe.Failed{Cause: name})
		o.Warned(observe.Warned{Text: name})
	}
	if n := len(o.decided.Values()); n != maxNames+1 {
		t.Errorf("%d policies, want %d and one for the others", n, maxNames)
	}
	if got := o.decided.Get(stats.Others).totals[observe.OutcomeAllowed].Load(); got != maxNames {
		t.Errorf("%d decisions of others, want %d", got, maxNames)
	}
	if servers := o.view().Servers; len(servers) != maxNames || len(o.moves) != maxNames || len(o.failures) != maxNames || len(o.warnings) != maxWarned {
		t.Errorf("%d servers, %d moves, %d failures, %d warnings", len(servers), len(o.moves), len(o.failures), len(o.warnings))
	}
}

// A throttler gives the observer the key and the retry time only for a refused take.
func TestThrottlerTellsWhichKeyIsRefused(t *testing.T) {
	var got []observe.Decided
	c := clock.NewManual(began)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c, Observer: &recorder{decided: &got}})
	two := &throttler.Policy{Name: "two", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}, {Quota: 1, Window: time.Minute}}}
	for range 2 {
		if _, err := th.Take(t.Context(), two.Charge("client")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := th.Peek(t.Context(), two.Charge("client")); err != nil {
		t.Fatal(err)
	}
	if got[0].Key != "" || got[2].Key != "" {
		t.Errorf("a key in %+v or %+v; want one of the refused take alone", got[0], got[2])
	}
	if e := got[1]; e.Key != "client" || e.Limit != 1 || !e.RetryAt.Equal(began.Add(time.Minute)) {
		t.Errorf("got %+v; want client, refused by limit 1 for a minute", e)
	}
}

type recorder struct {
	observe.Nothing
	decided *[]observe.Decided
}

func (r *recorder) Decided(_ context.Context, e observe.Decided) { *r.decided = append(*r.decided, e) }

func TestConcurrent(t *testing.T) {
	o := New(nil)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: time.Hour}}}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 500 {
				_, _ = th.Take(context.Background(), core.Charge(fmt.Sprint(i, j%50)))
				if j%100 == 0 {
					_ = o.view()
				}
			}
		})
	}
	all.Wait()
	s := o.decided.Get("core")
	if allowed, refused := s.totals[observe.OutcomeAllowed].Load(), s.totals[observe.OutcomeRefused].Load(); allowed != 1000 || refused != 1000 {
		t.Errorf("%d allowed, %d refused; want 1000 each", allowed, refused)
	}
}

func BenchmarkTake(b *testing.B) {
	for name, o := range map[string]observe.Observer{"none": nil, "weirdebug": New(nil)} {
		for _, quota := range []int64{1, 1 << 40} {
			b.Run(fmt.Sprintf("%s/refused=%t", name, quota == 1), func(b *testing.B) {
				b.ReportAllocs()
				t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
				charge := (&throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Hour}}}).Charge("client")
				for b.Loop() {
					_, _ = t.Take(context.Background(), charge)
				}
			})
		}
	}
}
