package consistency

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/quota"
)

// Level is where a policy's decisions are made.
type Level uint8

// The consistency levels. Exact is the zero value.
const (
	Exact  Level = iota // by the store, one by one
	Leased              // in this process, from units leased of the store
	Synced              // in this process, from totals that processes agree on
)

var levelNames = []string{"exact", "leased", "synced"}

// String returns "exact", "leased" or "synced".
func (m Level) String() string {
	if int(m) < len(levelNames) {
		return levelNames[m]
	}
	return fmt.Sprintf("Level(%d)", uint8(m))
}

// MarshalText returns m's String. An error wraps quota.ErrInvalid: m is not a level.
func (m Level) MarshalText() ([]byte, error) {
	return []byte(m.String()), new(Level).UnmarshalText([]byte(m.String()))
}

// UnmarshalText sets m to the level whose String is text. An error wraps quota.ErrInvalid.
func (m *Level) UnmarshalText(text []byte) error {
	i := slices.Index(levelNames, string(text))
	if i < 0 {
		return invalid.Errorf("consistency: level is %q; it must be exact, leased or synced", text)
	}
	*m = Level(i)
	return nil
}

// DefaultAgree is the default of Options.Agree.
const DefaultAgree = time.Minute

// Options configures a Table. Nil and the zero value select the defaults.
type Options struct {
	// Agree is the longest time that processes may have different levels for a policy
	// during a change, from the first process with the new level to the last. If zero,
	// DefaultAgree.
	Agree time.Duration

	// Clock is the clock of the throttler in front. If nil, clock.System.
	Clock clock.Clock
}

// Table contains the levels of policies. It is safe for concurrent use.
type Table struct {
	agree   time.Duration
	clock   clock.Clock
	editing sync.Mutex
	bound   *members                         // the Backend's, or nil before New
	byName  atomic.Pointer[map[string]entry] // a new map for each change
}

// members reports the levels other than Exact that a Backend supports.
type members struct{ leases, syncs bool }

// entry is the level of a policy. The zero value is Exact.
type entry struct {
	policy    *quota.Policy
	level     Level
	agreed    int64 // ms: when all processes have the level, after a change from or to Synced; 0 before one
	bothUntil int64 // ms: until then both kinds of counts decide: agreed plus the longest time that a charge counts under policy
}

// NewTable returns a Table in which all policies are Exact until [Table.Begin] or
// [Table.Set]. The error is about options and wraps quota.ErrInvalid.
func NewTable(options *Options) (*Table, error) {
	o := *cmp.Or(options, new(Options))
	o.Agree, o.Clock = cmp.Or(o.Agree, DefaultAgree), cmp.Or[clock.Clock](o.Clock, clock.System{})
	if o.Agree < 0 {
		return nil, invalid.Errorf("consistency: Agree is %v; it must be positive, or 0 for %v", o.Agree, DefaultAgree)
	}
	t := &Table{agree: o.Agree, clock: o.Clock}
	t.byName.Store(&map[string]entry{})
	return t, nil
}

// Begin puts a policy, before its first take, at the level that other processes have for
// it. An error wraps quota.ErrInvalid: p cannot be at m, the Backend of the table cannot
// decide at m, or p has a level already.
func (t *Table) Begin(p *quota.Policy, m Level) error {
	return t.edit(p, m, func(e *entry, exists bool) error {
		if exists {
			return invalid.Errorf("consistency: policy %q is %v already; Set changes it", p.Name, e.level)
		}
		return nil
	})
}

// Set changes the level of a policy. After a change from or to Synced, takes charge both kinds
// of counts, and must fit both, for Agree plus the time that a charge counts under p, or under
// the limits that it carries, if that is longer. A policy that has not begun at another level
// is Exact. An error wraps quota.ErrInvalid: p cannot be at m, or the Backend of the table
// cannot decide at m.
func (t *Table) Set(p *quota.Policy, m Level) error {
	return t.edit(p, m, func(e *entry, _ bool) error {
		if (e.level == Synced) != (m == Synced) {
			agreed := t.clock.Now().Add(t.agree)
			e.agreed = max(e.agreed, agreed.UnixMilli())
			e.bothUntil = max(e.bothUntil, agreed.Add(longest(p)).UnixMilli())
		}
		return nil
	})
}

// edit puts p at m, after change has updated its entry.
func (t *Table) edit(p *quota.Policy, m Level, change func(e *entry, exists bool) error) error {
	if err := Supports(p, m); err != nil {
		return err
	}
	t.editing.Lock()
	defer t.editing.Unlock()
	if t.bound != nil {
		if err := t.bound.decide(p, m); err != nil {
			return err
		}
	}
	old := *t.byName.Load()
	e, exists := old[p.Name]
	if err := change(&e, exists); err != nil {
		return err
	}
	e.policy, e.level = p, m
	next := maps.Clone(old)
	next[p.Name] = e
	t.byName.Store(&next)
	return nil
}

// bind binds the table to a Backend. leases is the Leases of its store, or nil if the store
// leases nothing. The error is about a policy whose level the Backend can't decide at: a
// leased policy would silently be exact.
func (t *Table) bind(leases func(*quota.Policy) bool, syncs bool) error {
	t.editing.Lock()
	defer t.editing.Unlock()
	bound := &members{leases != nil, syncs}
	byName := *t.byName.Load()
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		e := byName[name]
		if err := bound.decide(e.policy, e.level); err != nil {
			return err
		}
		if e.bothUntil > 0 {
			if err := bound.decide(e.policy, Synced); err != nil { // its counts are still needed
				return err
			}
		}
		if leases != nil && leases(e.policy) != (e.level == Leased) {
			return invalid.Errorf("consistency: policy %q is %v, but the store goes by other Leases than this table's; make leased.Options.Leases the Leases of this table", name, e.level)
		}
	}
	t.bound = bound
	return nil
}

// decide returns nil if p can be decided about at level m.
func (b *members) decide(p *quota.Policy, m Level) error {
	switch {
	case m == Leased && !b.leases:
		return invalid.Errorf("consistency: policy %q is leased, but the store leases nothing; put a leased.Backend around it, behind wrappers that have an Unwrap method alone, or make the policy exact", p.Name)
	case m == Synced && !b.syncs:
		return invalid.Errorf("consistency: policy %q is synced, but soft is nil; give New a synced.Backend, or make it exact", p.Name)
	}
	return nil
}

// Supports returns nil if p can be at m. The error wraps quota.ErrInvalid.
func Supports(p *quota.Policy, m Level) error {
	if m > Synced {
		return invalid.Errorf("consistency: level is %d; it must be Exact, Leased or Synced", m)
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if m == Synced {
		return synced.Supports(p)
	}
	return nil
}

// longest returns the longest time that a charge may count under p.
func longest(p *quota.Policy) time.Duration {
	greatest := time.Duration(0)
	for i := range p.Limits {
		greatest = max(greatest, algorithm.Lifetime(p.Limits[i]))
	}
	return greatest
}

// State is the consistency level of a policy.
type State struct {
	Level Level

	// BothUntil is when the last change is complete, under the limits that Begin or Set was
	// given. Until then, both kinds of counts decide. It is zero if no change needed both.
	BothUntil time.Time
}

// State returns the level of the policy of that name.
func (t *Table) State(policy string) State {
	e := (*t.byName.Load())[policy]
	s := State{Level: e.level}
	if e.bothUntil > 0 {
		s.BothUntil = time.UnixMilli(e.bothUntil).UTC()
	}
	return s
}

// Leases reports whether p is Leased. It is the Leases of leased.Options.
func (t *Table) Leases(p *quota.Policy) bool {
	return (*t.byName.Load())[p.Name].level == Leased
}

// Routes, of bits for Backend.Backends.
const (
	inStore = 1 << iota
	inSoft
	inBoth = inStore | inSoft
)

// route returns the counts of a charge of p, the policy in force, at now. The synced counts
// have no part in a change to limits that only the store supports.
func (e *entry) route(p *quota.Policy, now int64) uint8 {
	switch {
	case e.agreed > 0 && now < max(e.bothUntil, e.agreed+longest(p).Milliseconds()) && (e.level == Synced || synced.Supports(p) == nil):
		return inBoth
	case e.level == Synced:
		return inSoft
	}
	return inStore
}
