package descriptors

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
)

// Set is a configuration, made ready for decisions. It is immutable.
type Set struct {
	domains map[string]*Domain
	rules   map[string]*Rule // one of each path
	list    []*Rule          // by their Index
}

// Domain has the descriptors of a domain.
type Domain struct {
	name string
	key  string // that counts' keys begin with
	node
}

// node is a place in the tree of descriptors.
type node struct {
	rule     *Rule  // nil if there is no limit
	shared   string // the pattern that names the count of all its values; "" without share_threshold
	value    string // as the file has it
	valued   bool   // value_to_metric
	exact    map[pair]*node
	byKey    map[string]*node
	patterns []pattern // in the order of the file
}

// pattern is a descriptor whose key or value has a '*'.
type pattern struct {
	key, value parts
	anyValue   bool // a key without a value
	next       *node
}

// parts are what is between the '*' of a pattern.
type parts []string

// New returns the set of files, in the order of their names. A domain is in one file,
// unless merge. Old is the set that this one follows, or nil. The error wraps
// quota.ErrInvalid.
func New(files []*File, merge bool, old *Set) (*Set, error) {
	s := &Set{domains: make(map[string]*Domain), rules: make(map[string]*Rule)}
	files = slices.SortedStableFunc(slices.Values(files), func(a, b *File) int { return cmp.Compare(a.name, b.name) })
	var problems []error
	from := make(map[string]string)
	for _, f := range files {
		name := string(f.Domain)
		if before, again := from[name]; again && !merge {
			problems = append(problems, invalid.Errorf("%s: domain is %q, as in %s; a domain must be in one file, unless MERGE_DOMAIN_CONFIG is true", f.name, name, before))
			continue
		}
		from[name] = f.name
		d := s.domains[name]
		if d == nil {
			d = &Domain{name: name, key: string(appendEscaped(nil, name)) + "?"}
			s.domains[name] = d
		}
		b := builder{s, f.name, name, &problems}
		b.add(&d.node, f.Descriptors, "descriptors", name, Labels{Domain: name}, 0, false)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	slices.SortStableFunc(s.list, func(a, b *Rule) int { return cmp.Compare(a.Path, b.Path) })
	for i, r := range s.list {
		r.Index = i
		if old == nil {
			continue
		}
		if before := old.rules[r.Path]; before != nil {
			r.learned = before.learned
		}
	}
	return s, nil
}

// addRule adds r. Two rules may have one path, such as a_b of key a with the value b and of
// key a_b, and then one policy, which has one mode.
func (s *Set) addRule(r *Rule) error {
	s.list = append(s.list, r)
	if before := s.rules[r.Path]; before != nil && before.Mode != r.Mode {
		return invalid.Errorf("the mode of %s is %v and %v; two limits of this name must have one", r.Path, before.Mode, r.Mode)
	}
	s.rules[r.Path] = r
	return nil
}

// builder adds the descriptors of a file to a set.
type builder struct {
	set          *Set
	file, domain string
	problems     *[]error
}

func (b *builder) add(n *node, all []Descriptor, at, path string, labels Labels, depth int, valued bool) {
	for i := range all {
		d := &all[i]
		at, path, labels := fmt.Sprintf("%s[%d]", at, i), path+"."+joined(d), labels
		switch depth {
		case 0:
			labels.Key1 = joined(d)
		case 1:
			labels.Key2 = joined(d)
		}
		next, before := n.next(d)
		if before {
			*b.problems = append(*b.problems, invalid.Errorf("%s: %s has the key and value of a descriptor of another file of the domain %q; they must differ", b.file, at, b.domain))
			continue
		}
		valued := valued || bool(d.ValueToMetric)
		if d.RateLimit != nil {
			next.rule = newRule(d, path, labels, valued || bool(d.DetailedMetric))
			if err := b.set.addRule(next.rule); err != nil {
				*b.problems = append(*b.problems, fmt.Errorf("%s: %s: %w", b.file, at, err))
			}
		}
		b.add(next, d.Descriptors, at+".descriptors", path, labels, depth+1, valued)
	}
}

// joined returns the key and value of d as envoyproxy/ratelimit shows them.
func joined(d *Descriptor) string {
	if d.Value == "" {
		return string(d.Key)
	}
	return string(d.Key) + "_" + string(d.Value)
}

// next returns the node of d below n, a new one unless before.
func (n *node) next(d *Descriptor) (next *node, before bool) {
	if n.exact == nil {
		n.exact, n.byKey = make(map[pair]*node), make(map[string]*node)
	}
	key, value := string(d.Key), string(d.Value)
	next = &node{value: value, valued: bool(d.ValueToMetric)}
	if d.ShareThreshold {
		next.shared = cmp.Or(value, key)
	}
	if value == "" {
		if n.byKey[key] != nil {
			return nil, true
		}
		n.byKey[key] = next
	} else {
		if n.exact[pair{key, value}] != nil {
			return nil, true
		}
		n.exact[pair{key, value}] = next
	}
	if strings.Contains(key+value, "*") {
		n.patterns = append(n.patterns, pattern{strings.Split(key, "*"), strings.Split(value, "*"), value == "", next})
	}
	return next, false
}

// Empty reports whether s has no domain.
func (s *Set) Empty() bool { return len(s.domains) == 0 }

// Domain returns a domain, or nil.
func (s *Set) Domain(name string) *Domain { return s.domains[name] }

// Rules returns all rules, in the order of their paths. They are not to be changed.
func (s *Set) Rules() []*Rule { return s.list }

// Dump writes the rules, a line for each, as /rlconfig shows them.
func (s *Set) Dump(w io.Writer) error {
	for _, r := range s.list {
		own := ""
		if r.Policy != nil && !r.Policy.Limits[0].Aligned {
			own = fmt.Sprintf(", algorithm: %s, burst: %d", r.Policy.Limits[0].Algorithm, r.Policy.Limits[0].Capacity())
		}
		if _, err := fmt.Fprintf(w, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t%s\n", r.Path, r.Limit.Unit, r.Limit.RequestsPerUnit, r.Shadow, r.Quota, own); err != nil {
			return err
		}
	}
	return nil
}
