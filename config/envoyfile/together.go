package envoyfile

import (
	"errors"
	"fmt"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/consistency"
)

// Together checks files that are one configuration, in the order of Sort. A domain must be in
// one file, unless merge is true. The error has a line for each mistake, which begins with the
// name of a file, and wraps quota.ErrInvalid.
func Together(files []*File, merge bool) error {
	c := collection{domains: make(map[string]*domain), levels: make(map[string]consistency.Level)}
	for _, f := range files {
		name := f.Domain
		d := c.domains[name]
		if d == nil {
			d = &domain{file: f.Source, tree: make(tree)}
			c.domains[name] = d
		} else if !merge {
			c.wrong(f, "domain is %q, as in %s; a domain must be in one file, unless MERGE_DOMAIN_CONFIG is true", name, d.file)
			continue
		}
		c.add(f, d.tree, f.Descriptors, "descriptors", name)
	}
	return errors.Join(c.problems...)
}

// collection is the content of the files checked so far.
type collection struct {
	domains  map[string]*domain
	levels   map[string]consistency.Level // of limits, by the keys of their paths
	problems []error
}

type domain struct {
	file string // the first
	tree tree
}

// tree has the descriptors at a place, and the trees below them.
type tree map[pair]tree

func (c *collection) wrong(f *File, format string, args ...any) {
	c.problems = append(c.problems, invalid.Errorf("%s: %s", f.Source, fmt.Sprintf(format, args...)))
}

func (c *collection) add(f *File, to tree, list []Descriptor, place, path string) {
	for i := range list {
		d := &list[i]
		place, path, p := fmt.Sprintf("%s[%d]", place, i), path+"."+d.Key, pair{d.Key, d.Value}
		if to[p] != nil {
			c.wrong(f, "%s has the key and value of a descriptor of another file of the domain %q; they must differ", place, f.Domain)
			continue
		}
		to[p] = make(tree)
		c.checkLevel(f, d.RateLimit, place, path)
		c.add(f, to[p], d.Descriptors, place+".descriptors", path)
	}
}

// checkLevel checks that limits of the same keys, which have one policy, have one level.
func (c *collection) checkLevel(f *File, l *RateLimit, place, path string) {
	if l == nil || l.Requests() == 0 {
		return
	}
	if before, found := c.levels[path]; found && before != l.Level {
		c.wrong(f, "%s: the level of %s is %v and %v; limits of the same keys, whatever their values, must have one", place, path, before, l.Level)
	}
	c.levels[path] = l.Level
}
