package descriptors

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-go/weir/config/envoyfile"
)

// Set is a configuration, prepared for decisions. It is immutable.
type Set struct {
	domains map[string]*Domain
	list    []*Rule // by their Index

	compatible bool
}

// Domain contains the descriptors of a domain.
type Domain struct {
	name string
	key  string // the prefix of its counts' keys
	node
}

// node is a place in the tree of descriptors.
type node struct {
	rule     *Rule  // nil if there is no limit
	shared   string // the pattern that names the count shared by all its values; "" without share_threshold
	value    string // as in the file
	full     string // the key, and the value after '_'
	valued   bool   // value_to_metric
	exact    map[pair]*node
	byKey    map[string]*node
	patterns []pattern        // in the order of the file
	joined   map[string]*node // by full, to be compatible; otherwise nil
}

type pair struct{ key, value string }

// pattern is a descriptor with a '*' in its key or value.
type pattern struct {
	key, value parts
	anyValue   bool // a key without a value
	full       parts
	next       *node
}

// parts are the texts between the '*' of a pattern.
type parts []string

// Parse reads the texts of files in a directory, by their names. The error lists the mistakes of
// all files.
func Parse(dir string, texts map[string][]byte, supports envoyfile.Supports) (list []*envoyfile.File, err error) {
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		f, err := envoyfile.Parse(filepath.Join(dir, name), texts[name], supports)
		wrong = append(wrong, err)
		list = append(list, f)
	}
	return list, errors.Join(wrong...)
}

// New returns the set of files, in the order of their names. A domain must be in one file,
// unless merge is true. If compatible, the set finds rules like envoyproxy/ratelimit, which joins
// keys and values: the entry (a, b) finds the key a_b. The error wraps quota.ErrInvalid.
func New(files []*envoyfile.File, merge, compatible bool) (*Set, error) {
	files = slices.Clone(files)
	envoyfile.Sort(files)
	if err := envoyfile.Together(files, merge); err != nil {
		return nil, err
	}
	s := &Set{domains: make(map[string]*Domain), compatible: compatible}
	for _, f := range files {
		name := f.Domain
		d := s.domains[name]
		if d == nil {
			d = &Domain{name: name, key: string(appendEscaped(nil, name)) + "?"}
			s.domains[name] = d
		}
		s.add(&d.node, f.Descriptors, name, nil, Labels{Domain: name}, 0, false)
	}
	slices.SortStableFunc(s.list, func(a, b *Rule) int { return cmp.Compare(a.Path, b.Path) })
	for i, r := range s.list {
		r.Index = i
	}
	return s, nil
}

// add adds the descriptors at path to n. keys are the keys of the path.
func (s *Set) add(n *node, list []envoyfile.Descriptor, path string, keys []string, labels Labels, depth int, valued bool) {
	for i := range list {
		d, labels := &list[i], labels
		name := d.String()
		path, keys := path+"."+name, append(slices.Clip(keys), d.Key)
		switch depth {
		case 0:
			labels.Key1 = name
		case 1:
			labels.Key2 = name
		}
		next, valued := n.next(d, s.compatible), valued || d.ValueToMetric
		if d.RateLimit != nil {
			next.rule = newRule(d, path, keys, labels, valued || d.DetailedMetric)
			s.list = append(s.list, next.rule)
		}
		s.add(next, d.Descriptors, path, keys, labels, depth+1, valued)
	}
}

// next returns a new node for d below n.
func (n *node) next(d *envoyfile.Descriptor, compatible bool) *node {
	if n.exact == nil {
		n.exact, n.byKey = make(map[pair]*node), make(map[string]*node)
	}
	if compatible && n.joined == nil {
		n.joined = make(map[string]*node)
	}
	key, value := d.Key, d.Value
	next := &node{value: value, full: d.String(), valued: d.ValueToMetric}
	if d.ShareThreshold {
		next.shared = cmp.Or(value, key)
	}
	if value == "" {
		n.byKey[key] = next
	} else {
		n.exact[pair{key, value}] = next
	}
	if strings.Contains(key+value, "*") {
		n.patterns = append(n.patterns, pattern{strings.Split(key, "*"), strings.Split(value, "*"), value == "", strings.Split(next.full, "*"), next})
	}
	if compatible {
		n.joined[next.full] = next
	}
	return next
}

// Empty reports whether s has no domain.
func (s *Set) Empty() bool { return len(s.domains) == 0 }

// Names returns the names of the domains, in order.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.domains)) }

// Domain returns a domain, or nil.
func (s *Set) Domain(name string) *Domain { return s.domains[name] }

// Rules returns all rules, in the order of their paths. The caller must not change them.
func (s *Set) Rules() []*Rule { return s.list }

// Dump writes the rules, a line for each, as /rlconfig shows them: as envoyproxy/ratelimit does,
// and then weir's own keys, and the name of the policy in logs, pages and weirctl.
func (s *Set) Dump(w io.Writer) error {
	for _, r := range s.list {
		extra := ""
		if n := r.Limit.UnitMultiplier.GetValue(); n > 1 {
			extra = fmt.Sprintf(", unit_multiplier: %d", n)
		}
		if l := &r.Policy.Limits[0]; r.Counts() && !l.Calendar.IsZero() {
			extra = fmt.Sprintf(", calendar: %v", l.Calendar)
		} else if r.Counts() && !l.Aligned {
			extra += fmt.Sprintf(", algorithm: %s, burst: %d", l.Algorithm, l.Capacity())
		}
		extra += ", policy: " + r.Policy.Name
		if _, err := fmt.Fprintf(w, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t%s\n", r.Path, r.Limit.Unit, r.Limit.RequestsPerUnit, r.Shadow, r.Quota, extra); err != nil {
			return err
		}
	}
	return nil
}
