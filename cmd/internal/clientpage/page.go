// Package clientpage serves a page about one client of a running program: the units used, the
// limits that refuse it and until when, and the override in force. A signed-in operator can give the
// client other limits, block it, end both, and reset its counts.
package clientpage

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // page.html
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/policies"
)

//go:embed page.html
var source string

var html = template.Must(template.New("page").Funcs(template.FuncMap{"args": func(v *view, c client) arguments { return arguments{v, c} }}).Parse(source))

// arguments are the arguments of the template that shows a client.
type arguments struct {
	View   *view
	Client client
}

// contentPolicy allows the page's style, by its hash, and forms to the page, and nothing else.
var contentPolicy = func() string {
	_, style, _ := strings.Cut(source, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
}()

// Kind is a way to name a client.
type Kind struct {
	Name    string // in the query
	Label   string // for people
	Example string // of a text

	// Find returns the counts of the client that text names. The error says what would be right.
	Find func(c *operator.Counts, text string, e *operator.Explanation) ([]inspect.Match, error)
}

// Keys is the Kind of keys as the program charges them, under the named policies. If there are none,
// it finds the policies that the key can be for.
func Keys(example string) Kind {
	return Kind{Name: "key", Label: "Key", Example: example}
}

// Options configures the page.
type Options struct {
	// Stack has the counts. Overrides are kept in its Redis server of policies or, if all counts
	// are in memory, in Table. Otherwise there are none to change, and NoStore says what must be set.
	Stack   *config.Stack
	NoStore string

	// Table has the policies and overrides in force.
	Table *policies.Table

	// Service returns the configuration now, or nil if there is none yet.
	Service func() *inspect.Service

	Kinds []Kind

	// Operators is the name of a file with a NAME:PASSWORD in each line. If empty, the page only shows, and
	// NoOperators says what must be set.
	Operators   string
	NoOperators string

	// Label returns the text for a key in the log, and in the list without a sign-in.
	Label func(key string) string

	Log *slog.Logger
}

// page is the handler of the page.
type page struct {
	Options
	store  Store                // nil if there is none
	peeks  *throttler.Throttler // reads counts, without the table
	access *access              // nil if the page only shows
}

// New returns the handler of the page, for any path. The caller must call close.
func New(o *Options) (handler http.Handler, close func() error, err error) {
	p := &page{Options: *o, peeks: throttler.New(o.Stack.Backend, &throttler.Options{Clock: o.Stack.Clock()})}
	if o.Operators != "" {
		p.access = newAccess(o.Operators)
	}
	close = func() error { return nil }
	stored, closeStored, err := o.Stack.Config.OpenPolicies()
	switch {
	case err != nil:
		return nil, nil, err
	case stored != nil:
		p.store, close = stored, closeStored
	case o.Stack.Config.Backend == "memory":
		p.store = newMemory(o.Table)
	}
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Log.Warn("operators: a request from another site was refused", "origin", r.Header.Get("Origin"))
		http.Error(w, "the request came from a page of another site; open this page, and press the button there", http.StatusForbidden)
	}))
	return protection.Handler(p), close, nil
}

// counts returns the counts of the configuration now, or nil if there is none yet.
func (p *page) counts() *operator.Counts {
	service := p.Service()
	if service == nil {
		return nil
	}
	return &operator.Counts{Service: service, Throttler: p.peeks, Table: p.Table}
}

// maxForm bounds the body of a form.
const maxForm = 64 << 10

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	acts := r.Method == http.MethodPost
	if !acts && r.Method != http.MethodGet && r.Method != http.MethodHead || acts && p.access == nil {
		allowed := "GET, HEAD"
		if p.access != nil {
			allowed += ", POST"
		}
		w.Header().Set("Allow", allowed)
		http.Error(w, "this page only shows: "+p.NoOperators, http.StatusMethodNotAllowed)
		return
	}
	name := ""
	if p.access != nil {
		var ok bool
		if name, ok = p.access.operator(w, r, p); !ok {
			return
		}
	}
	if text := r.URL.Query().Get("explain"); text != "" && !acts {
		p.explain(w, r, text)
		return
	}
	v := &view{page: p, Operator: name, query: r.URL.Query(), At: time.Now(), Status: http.StatusOK}
	v.Done = dones[v.query.Get("done")]
	v.query.Del("done") // forms and links lead on from here
	if acts {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		done, err := v.act(r)
		if err == nil {
			v.query.Set("done", done)
			http.Redirect(w, r, r.URL.Path+v.Here(), http.StatusSeeOther)
			return
		}
		v.Form = r.PostForm
		v.fail(err)
	}
	v.look(r.Context())
	v.write(w)
}

// explain answers weirctl explain: text is an operator.Request in JSON, and the answer an
// operator.Explanation.
func (p *page) explain(w http.ResponseWriter, r *http.Request, text string) {
	c := p.counts()
	if c == nil {
		http.Error(w, noConfiguration, http.StatusServiceUnavailable)
		return
	}
	var q operator.Request
	var e operator.Explanation
	err := json.Unmarshal([]byte(text), &q)
	var matches []inspect.Match
	if err == nil {
		matches, err = q.Matches(c.Service, &e)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	e.Explain(r.Context(), c, matches)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(e) // fails only if the client has left
}

const noConfiguration = "no configuration is in force yet, as the log says"

// errStore is an error of a server, which the request did not cause.
type errStore struct{ error }

func (e errStore) Unwrap() error { return e.error }

func (v *view) fail(err error) {
	var unavailable errStore
	switch {
	case errors.As(err, &unavailable), errors.Is(err, throttler.ErrUnavailable):
		v.Status = http.StatusServiceUnavailable
	default:
		v.Status = http.StatusUnprocessableEntity
	}
	v.Error = err.Error()
}

// view is the data of the page.
type view struct {
	page  *page
	query url.Values

	At         time.Time
	Operator   string // of this request, or ""
	Status     int
	Error      string
	Done       string     // what an action before this view did
	Form       url.Values // of an action that failed
	Explained  bool
	Verdict    operator.Explanation
	Clients    []client // with counts or overrides
	Empty      []client // without
	Overrides  []listed
	More       bool // overrides than are listed
	NoOverride string
}

// client is a key under one policy.
type client struct {
	Policy, Rule, Key, Partition string
	Rows                         []operator.Row
	Override                     *policies.Override // in force
	Stored                       *policies.Override // that the page can change
	Level                        string
	Limits                       string // in words
}

// listed is an override in the list.
type listed struct {
	policies.Override
	Label string
}

// Pointer returns the override.
func (l listed) Pointer() *policies.Override { return &l.Override }

const maxListed = 100

func (v *view) Kinds() []Kind                     { return v.page.Kinds }
func (v *view) Kind() string                      { return cmp.Or(v.query.Get("kind"), v.page.Kinds[0].Name) }
func (v *view) Client() string                    { return v.query.Get("client") }
func (v *view) Policy() string                    { return v.query.Get("policy") }
func (v *view) Here() string                      { return "?" + v.query.Encode() }
func (v *view) Acts() bool                        { return v.page.access != nil }
func (v *view) NoStore() string                   { return v.page.NoStore }
func (v *view) Stores() bool                      { return v.page.store != nil }
func (v *view) SwitchOn() string                  { return v.page.NoOperators }
func (v *view) Lasts() []string                   { return lasts }
func (v *view) IsLookup() bool                    { return v.Client() != "" }
func (v *view) Printable(s string) string         { return operator.Printable(s) }
func (v *view) Holds(o *policies.Override) string { return operator.Holds(o) }
func (v *view) LimitText(r operator.Row) string   { return operator.LimitText(*r.Limit) }

// Names returns the names of the policies, for the form.
func (v *view) Names() []string {
	if c := v.page.counts(); c != nil {
		return c.Service.Names()
	}
	return nil
}

// Link returns the address of the page about a key under a policy.
func (v *view) Link(policy, key string) string {
	return "?" + url.Values{"kind": {"key"}, "client": {operator.Printable(key)}, "policy": {policy}}.Encode()
}

// Field returns the value of a field of the form about c: the one that was sent, if it was, or def.
func (v *view) Field(c client, name, def string) string {
	if v.Form != nil && v.Form.Get("policy") == c.Policy && operator.Key(v.Form.Get("key")) == c.Key {
		return v.Form.Get(name)
	}
	return def
}

// When returns an instant in words.
func (v *view) When(instant time.Time) string {
	if instant.IsZero() || instant.Equal(decision.Never) {
		return "never"
	}
	return operator.When(instant, v.At)
}

// Note says what else matters of a count.
func (v *view) Note(r operator.Row) string {
	notes := slices.Clone(r.Notes)
	if r.Error != "" {
		notes = append(notes, r.Error)
	}
	switch r.Level {
	case consistency.Leased.String():
		notes = append(notes, "leased: units that processes hold count as used")
	case consistency.Synced.String():
		notes = append(notes, "synced: as this process counts")
	}
	return strings.Join(notes, "; ")
}

// look finds the client of the query.
func (v *view) look(ctx context.Context) {
	c := v.page.counts()
	if v.IsLookup() && c == nil && v.Error == "" {
		v.fail(errStore{errors.New(noConfiguration)})
	}
	if v.IsLookup() && c != nil {
		if err := v.find(ctx, c); err != nil && v.Error == "" {
			v.fail(err)
		}
	}
	v.list(ctx)
}

func (v *view) find(ctx context.Context, c *operator.Counts) error {
	matches, err := v.matches(c)
	if err != nil {
		return err
	}
	v.Verdict.Explain(ctx, c, matches)
	v.Explained = true
	for i := range matches {
		m := &matches[i]
		shown := client{Policy: m.Policy.Name, Rule: m.Rule, Key: m.Key, Partition: m.Partition}
		isEmpty := true
		for _, row := range v.Verdict.Counts {
			if row.Policy != shown.Policy || row.Key != shown.Key {
				continue
			}
			shown.Rows, shown.Override, shown.Level = append(shown.Rows, row), row.Override, row.Level
			isEmpty = isEmpty && !row.IsCounted() && row.Override == nil && row.Error == "" && !row.Refused
		}
		if shown.Limits = operator.LimitTexts(m.Policy.Limits); shown.Override != nil && len(shown.Override.Limits) > 0 {
			shown.Limits = operator.LimitTexts(shown.Override.Limits)
		}
		if v.page.store != nil {
			if shown.Stored, err = v.page.store.Find(ctx, shown.Policy, shown.Key); err != nil {
				v.NoOverride = err.Error()
			}
		}
		if isEmpty = isEmpty && shown.Stored == nil && len(matches) > 1; isEmpty {
			v.Empty = append(v.Empty, shown)
		} else {
			v.Clients = append(v.Clients, shown)
		}
	}
	if v.Kind() == "key" {
		return c.UnlessMeant(ctx, matches, v.Verdict.Counts, operator.Key(strings.TrimSpace(v.Client())))
	}
	return nil
}

// matches returns the counts of the client in the query.
func (v *view) matches(c *operator.Counts) ([]inspect.Match, error) {
	text, policy := strings.TrimSpace(v.Client()), c.Service.PolicyName(strings.TrimSpace(v.Policy()))
	if policy != "" && !c.Service.Contains(policy) {
		return nil, c.Service.Unknown(policy)
	}
	i := slices.IndexFunc(v.page.Kinds, func(k Kind) bool { return k.Name == v.Kind() })
	if i < 0 {
		return nil, fmt.Errorf("kind is %q; it must be one of the form", v.Kind())
	}
	kind := v.page.Kinds[i]
	if kind.Find == nil {
		var names []string
		if policy != "" {
			names = []string{policy}
		}
		return c.Service.Key(names, operator.Key(text))
	}
	matches, err := kind.Find(c, text, &v.Verdict)
	if err != nil || policy == "" {
		return matches, err
	}
	var names []string
	for _, m := range matches {
		names = append(names, m.Policy.Name)
	}
	matches = slices.DeleteFunc(matches, func(m inspect.Match) bool { return m.Policy.Name != policy })
	if len(matches) == 0 {
		return nil, fmt.Errorf("policy %s does not charge %s; one of these does: %s", policy, strings.ToLower(kind.Label), strings.Join(names, ", "))
	}
	return matches, nil
}

// list lists the overrides in force.
func (v *view) list(ctx context.Context) {
	if v.page.store == nil {
		return
	}
	err := v.page.store.Overrides(ctx, func(o policies.Override) bool {
		if !o.Until.IsZero() && !v.At.Before(o.Until) {
			return true
		}
		if v.More = len(v.Overrides) == maxListed; v.More {
			return false
		}
		l := listed{o, operator.Printable(o.Key)}
		if v.Operator == "" {
			l.Label = v.page.Label(o.Key)
		}
		v.Overrides = append(v.Overrides, l)
		return true
	})
	if err != nil {
		v.NoOverride = err.Error()
	}
	slices.SortFunc(v.Overrides, func(a, b listed) int { return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Key, b.Key)) })
}

// Refusers lists the rules and policies that refuse.
func (v *view) Refusers() string { return strings.Join(v.Verdict.Refusers(), ", ") }

func (v *view) write(w http.ResponseWriter) {
	var text bytes.Buffer
	if err := html.Execute(&text, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(v.Status)
	_, _ = text.WriteTo(w) // fails only if the client has left
}
