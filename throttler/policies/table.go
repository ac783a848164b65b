package policies

import (
	"errors"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/quota"
)

// Table holds the policies and overrides of all its sources. The zero value is empty and
// ready for use. It is safe for concurrent use, and must not be copied.
type Table struct {
	editing sync.Mutex
	current atomic.Pointer[View]
	used    atomic.Bool // by a throttler, or the warning that it is not was given
}

// View is one state of a table. Later changes don't affect it. The zero value is empty.
type View struct {
	contents []*content // of the sources, the last one first
}

// content is the content of a source.
type content struct {
	source    *Source
	version   int64
	since     time.Time
	names     *trie[*entry]
	policies  int
	overrides int
}

// entry is the content of a source under the name of a policy.
type entry struct {
	policy    *quota.Policy // or nil
	overrides *trie[*Override]
	children  int32 // policies whose parent it is
	find      bool  // there may be overrides that the source does not hold
	plan      *plan // or nil
}

// View returns the state of t.
func (t *Table) View() View {
	if v := t.current.Load(); v != nil {
		return *v
	}
	return View{}
}

// Policy returns the policy of that name, even if it has ended. If t has none, the error wraps
// quota.ErrInvalid, and has the names of the others.
func (t *Table) Policy(name string) (*quota.Policy, error) {
	v := t.View()
	if p := v.Policy(name); p != nil {
		return p, nil
	}
	var names []string
	for _, p := range v.Policies() {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	const shown = 20
	return nil, invalid.Errorf("policies: the table has no policy %q; it has %q", name, names[:min(len(names), shown)])
}

// Source returns the source of that name, and creates it if t has no such source.
func (t *Table) Source(name string) *Source { return t.SourceWith(name, nil) }

// SourceWith is like Source, with options. The options of the first call for a name apply.
func (t *Table) SourceWith(name string, options *SourceOptions) *Source {
	t.editing.Lock()
	defer t.editing.Unlock()
	v := t.View()
	for _, c := range v.contents {
		if c.source.name == name {
			return c.source
		}
	}
	s := &Source{name: name, table: t, created: time.Now()}
	if options != nil && options.Find != nil {
		s.found = newFound(*options)
	}
	t.put(&content{source: s})
	return s
}

// put makes c the content of its source. The caller holds the lock.
func (t *Table) put(c *content) {
	contents := slices.Clone(t.View().contents)
	i := slices.IndexFunc(contents, func(o *content) bool { return o.source == c.source })
	if i < 0 {
		contents = append([]*content{c}, contents...)
	} else {
		contents[i] = c
	}
	t.current.Store(&View{contents})
}

// Policy returns the policy of that name, even if it has ended, or nil.
func (v View) Policy(name string) *quota.Policy { return v.PolicyAt(name, math.MinInt64) }

// PolicyAt returns the policy of that name that has not ended at now, in ms since the epoch, or
// nil.
func (v View) PolicyAt(name string, now int64) *quota.Policy {
	for _, c := range v.contents {
		if e := c.names.get(name); e != nil && e.policy != nil && e.policy.HoldsAt(now) {
			return e.policy
		}
	}
	return nil
}

// Policies ranges over the policies, in no order, with the names of their sources. It includes
// policies that have ended.
func (v View) Policies() iter.Seq2[string, *quota.Policy] {
	return func(yield func(string, *quota.Policy) bool) {
		for i, c := range v.contents {
			above := View{v.contents[:i]}
			for name, e := range c.names.entries() {
				if e.policy != nil && above.Policy(name) == nil && !yield(c.source.name, e.policy) {
					return
				}
			}
		}
	}
}

// Overrides ranges over the overrides that the sources hold, in no order, with the names of
// their sources. It includes overrides that have ended, or that a later source hides.
func (v View) Overrides() iter.Seq2[string, Override] {
	return func(yield func(string, Override) bool) {
		for _, c := range v.contents {
			for _, e := range c.names.entries() {
				for _, o := range e.overrides.entries() {
					if !yield(c.source.name, *o) {
						return
					}
				}
			}
		}
	}
}

// Source is the part of a table that comes from one place. [Table.Source] returns one. It
// is safe for concurrent use.
type Source struct {
	name    string
	table   *Table
	created time.Time
	found   *found // or nil
	wrong   atomic.Pointer[string]
	wrongs  atomic.Int64
}

// Edit puts the changes that change makes to e in force, all at once, unless one is invalid:
// then the error lists the mistakes, at most 20 of them, and wraps quota.ErrInvalid. The
// source's version increases by one, unless change sets it. Edits of a table are made one
// after another, so change must not begin one. Changes to found overrides, by [Edit.Learn] and
// [Edit.FindAllAgain], come into force just before the rest.
func (s *Source) Edit(change func(e *Edit)) error {
	s.table.editing.Lock()
	defer s.table.editing.Unlock()
	e := &Edit{owner: new(owner), content: *s.content()}
	e.version++
	change(e)
	if e.mistakes == 0 {
		e.link()
	}
	if e.mistakes > len(e.errs) {
		e.errs = append(e.errs, invalid.Errorf("policies: %d more", e.mistakes-len(e.errs)))
	}
	if err := errors.Join(e.errs...); err != nil {
		return err
	}
	e.since = time.Now()
	if s.found != nil {
		for _, change := range e.found {
			change(s.found)
		}
	}
	s.table.put(&e.content)
	s.wrong.Store(nil)
	return nil
}

// content returns the content of s.
func (s *Source) content() *content {
	contents := s.table.View().contents
	return contents[slices.IndexFunc(contents, func(c *content) bool { return c.source == s })]
}

// unusedAfter is how old a source is when WarnUnused warns: a program may still be starting.
const unusedAfter = 10 * time.Second

// WarnUnused warns o, once for a table, if no throttler has the table of s some seconds after s was
// created. What watches a store calls it with each check.
func (s *Source) WarnUnused(o observe.Observer) {
	if time.Since(s.created) < unusedAfter || s.table.used.Swap(true) {
		return
	}
	o.Warned(observe.Warned{
		Text: "policies: no throttler has the table of source \"" + s.name + "\", so that its policies and overrides have no effect",
		Hint: "set Options.Policies of throttler.New, or of weir.Open, to the table",
	})
}

// Wrong notes, for [Table.Status], why a newer version of the source is not in force. A nil
// err clears the note, as the next Edit does. Wrong reports whether the note has changed.
func (s *Source) Wrong(err error) bool {
	if err == nil {
		return s.wrong.Swap(nil) != nil
	}
	text := err.Error()
	if previous := s.wrong.Swap(&text); previous != nil && *previous == text {
		return false
	}
	s.wrongs.Add(1)
	return true
}
