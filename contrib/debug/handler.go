package weirdebug

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // page.html
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
)

//go:embed page.html
var source string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"brief": brief}).Parse(source))

// contentPolicy allows the page's style, by its hash, and nothing else.
var contentPolicy = func() string {
	_, style, _ := strings.Cut(source, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// Handler returns the handler of the page, at any path. It does not authenticate: mount it
// where only operators reach it. The page reloads every two seconds, unless the query has
// refresh=off.
//
// If the query has format=json, Handler answers with the values of the functions given to
// [Observer.Stats], as one JSON object, by name; if it has format=refused, with [Refusals] as
// JSON. weirctl top adds up the Refusals of several processes.
func (o *Observer) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("format") {
		case "json":
			o.writeStats(w)
			return
		case "refused":
			writeJSON(w, o.refused.top(o.now()))
			return
		}
		v := o.view()
		v.Refresh = r.URL.Query().Get("refresh") != "off"
		var text bytes.Buffer
		if err := page.Execute(&text, v); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = text.WriteTo(w) // fails only if the client has left
	})
}

// writeStats answers with the values of the parts, as JSON.
func (o *Observer) writeStats(w http.ResponseWriter) {
	values := make(map[string]any)
	for _, p := range o.partsNow() {
		values[p.name] = p.stats()
	}
	writeJSON(w, values)
}

func writeJSON(w http.ResponseWriter, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text) // fails only if the client has left
}

// view is the data of the page.
type view struct {
	Refresh  bool
	Client   string        // the address of the page about one client, or ""
	For      time.Duration // how long events were counted
	Policies []row
	Ops      []row
	Trips    []row
	Refusals
	Servers  []stats.Server
	Moves    []move
	Failures []failure
	Warnings []observe.Warned
	Parts    []partView
}

// Ago says how long ago something was.
func (v *view) Ago(start time.Time) string {
	if start.IsZero() {
		return "never"
	}
	return v.At.Sub(start).Round(time.Second).String() + " ago"
}

// Until says when a key that was refused is free.
func (v *view) Until(retryAt time.Time) string {
	if !retryAt.After(v.At) {
		return "free now"
	}
	return fmt.Sprintf("%s (in %v)", retryAt.UTC().Format(time.TimeOnly), retryAt.Sub(v.At).Round(time.Second))
}

// row is one line of counts: in the last second, and in the last minute.
type row struct {
	Name, Detail string
	Bad          bool // an operator should look
	Now, Minute  int64
	Spark        string // a path
	Peak         int64  // of the spark
	P50, P99     time.Duration
	Note         string
}

type partView struct {
	Name string
	Rows []partRow
}

func (o *Observer) view() *view {
	now := o.now()
	v := &view{Client: o.clientPage, For: now.Sub(o.since).Round(time.Second), Refusals: o.refused.top(now)}
	o.begin(now.Unix())
	o.viewSeries(v)
	o.viewServers(v)
	o.viewRare(v)
	for _, p := range o.partsNow() {
		v.Parts = append(v.Parts, partView{wordsOf(p.name), rowsOf(p.stats())})
	}
	return v
}

// partsNow returns the parts. Their functions are called without a lock: they may take one.
func (o *Observer) partsNow() []part {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.SortedFunc(slices.Values(o.parts), func(a, b part) int { return strings.Compare(a.name, b.name) })
}

func (o *Observer) viewSeries(v *view) {
	o.saving.Lock()
	defer o.saving.Unlock()
	now := o.second.Load()
	decided := o.decided.Values()
	for _, name := range slices.Sorted(maps.Keys(decided)) {
		for outcome := range observe.Outcomes + 1 {
			s := decided[name]
			if s.totals[outcome].Load() == 0 {
				continue
			}
			r := rowOf(s, now, outcome, outcome+1)
			r.Name, r.Detail, r.Bad = cmp.Or(name, "(of no limit)"), "of these, without the shared counts", true
			if outcome != degraded {
				r.Detail, r.Bad = observe.Outcome(outcome).String(), outcome >= int(observe.OutcomeInvalid)
			}
			v.Policies = append(v.Policies, r)
		}
	}
	for op, s := range o.ops {
		r := rowOf(s, now, 0, buckets)
		if r.Minute == 0 {
			continue
		}
		r.Name, r.P50, r.P99 = observe.Op(op).String(), s.quantile(now, 0, 0.5), s.quantile(now, 0, 0.99)
		v.Ops = append(v.Ops, r)
	}
	for k, s := range o.trips.Values() {
		r := rowOf(s, now, tripCounts, tripCounts+buckets)
		r.Name, r.Detail = k.backend+" "+k.shard, "primary"
		if k.replica {
			r.Detail = "replica"
		}
		r.P50, r.P99 = s.quantile(now, tripCounts, 0.5), s.quantile(now, tripCounts, 0.99)
		if r.Minute > 0 {
			r.Note = fmt.Sprintf("%.1f decisions each", float64(s.inHistory(now, tripDecisions))/float64(r.Minute))
		}
		if failed := s.inHistory(now, tripFailures); failed > 0 {
			r.Bad, r.Note = true, fmt.Sprintf("%s, %d failed", r.Note, failed)
		}
		v.Trips = append(v.Trips, r)
	}
	slices.SortFunc(v.Trips, func(a, b row) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Detail, b.Detail))
	})
}

// rowOf returns the row of the sum of counters from i to j.
func rowOf(s *series, now int64, i, j int) row {
	perSecond := s.perSecond(now, i, j)
	r := row{Now: perSecond[len(perSecond)-1], Peak: slices.Max(perSecond)}
	for _, n := range perSecond {
		r.Minute += n
	}
	r.Spark = spark(perSecond, r.Peak)
	return r
}

// The size of a sparkline, in its own units: two for each second.
const (
	sparkWidth  = 2 * history
	sparkHeight = 24
)

// spark returns the path of a line through values from 0 to peak.
func spark(values []int64, peak int64) string {
	var b strings.Builder
	for i, v := range values {
		command := byte('L')
		if i == 0 {
			command = 'M'
		}
		y := float64(sparkHeight-1) - float64(sparkHeight-2)*float64(v)/float64(max(peak, 1))
		fmt.Fprintf(&b, "%c%d %.1f", command, i*sparkWidth/(len(values)-1), y)
	}
	return b.String()
}

func (o *Observer) viewServers(v *view) {
	o.servers.ForEach(func(_ stats.ServerName, s *stats.Server) { v.Servers = append(v.Servers, *s) })
	slices.SortFunc(v.Servers, func(a, b stats.Server) int {
		return cmp.Or(strings.Compare(a.Backend, b.Backend), strings.Compare(a.Shard, b.Shard), strings.Compare(a.Server, b.Server))
	})
}

// viewRare adds the events that have their own lock.
func (o *Observer) viewRare(v *view) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v.Moves = sorted(o.moves, func(a, b move) int {
		return cmp.Or(strings.Compare(a.From, b.From), strings.Compare(a.To, b.To))
	})
	v.Failures = sorted(o.failures, func(a, b failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Backend+a.Shard+a.Cause, b.Backend+b.Shard+b.Cause), cmp.Compare(a.Result, b.Result))
	})
	v.Warnings = slices.Clone(o.warnings)
}

// sorted returns copies of the values of a map.
func sorted[K comparable, V any](byKey map[K]*V, compare func(a, b V) int) (values []V) {
	for _, v := range byKey {
		values = append(values, *v)
	}
	slices.SortFunc(values, compare)
	return values
}
