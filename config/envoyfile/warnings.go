package envoyfile

import (
	"fmt"
	"slices"
	"strings"
)

// Warnings describes what has no effect in files that are one configuration and have no mistakes:
// envoyproxy/ratelimit accepts it without a word. Each begins with the name of a file.
func Warnings(files []*File) (list []string) {
	var domains []string
	levels := make(map[string][]sibling) // the descriptors at the top of a domain
	for _, f := range files {
		if !slices.Contains(domains, f.Domain) {
			domains = append(domains, f.Domain)
		}
		levels[f.Domain] = append(levels[f.Domain], siblings(f.Source, "descriptors", f.Descriptors)...)
	}
	for _, name := range domains {
		w := warner{names: make(map[string]bool)}
		if level := levels[name]; !slices.ContainsFunc(level, sibling.limits) {
			i := slices.IndexFunc(files, func(f *File) bool { return f.Domain == name })
			w.add(files[i].Source, "the domain %q has no rate_limit, so that every request is allowed, unless it brings its own limit", name)
		} else {
			w.collect(level)
			w.warn(level)
		}
		list = append(list, w.list...)
	}
	return list
}

// warner collects the warnings of a domain.
type warner struct {
	names map[string]bool // of limits
	list  []string
}

func (w *warner) add(source, format string, args ...any) {
	w.list = append(w.list, source+": "+fmt.Sprintf(format, args...))
}

// sibling is a descriptor and its place.
type sibling struct {
	source, place string
	*Descriptor
}

func siblings(source, place string, list []Descriptor) (all []sibling) {
	for i := range list {
		all = append(all, sibling{source, fmt.Sprintf("%s[%d]", place, i), &list[i]})
	}
	return all
}

func (s sibling) below() []sibling { return siblings(s.source, s.place+".descriptors", s.Descriptors) }

func (s sibling) limits() bool { return s.Descriptor.limits() }

// limits reports whether d or a descriptor below it has a limit.
func (d *Descriptor) limits() bool {
	return d.RateLimit != nil || slices.ContainsFunc(d.Descriptors, func(d Descriptor) bool { return d.limits() })
}

// isWide reports whether s finds other values than its own.
func (s sibling) isWide() bool { return s.Value == "" || strings.Contains(s.Key+s.Value, "*") }

// covers reports whether d may be an exception to s, which is wide.
func (s sibling) covers(d sibling) bool {
	return s.Descriptor != d.Descriptor && (strings.Contains(s.Key, "*") || s.Key == d.Key || strings.HasPrefix(d.String(), s.Key+"_"))
}

// hides reports whether s, before d and with a pattern for its value, finds each value that d would find. A
// value without a pattern is found before those with one.
func (s sibling) hides(d sibling) bool {
	if s.Value == "*" {
		return d.isWide()
	}
	return strings.Contains(d.Value, "*") && matches(strings.Split(s.Value, "*"), d.Value)
}

// matches reports whether text contains the parts in order, the first at its beginning and the last
// at its end. A * in text is between two parts, since no part has one.
func matches(parts []string, text string) bool {
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}

func (w *warner) collect(level []sibling) {
	for _, d := range level {
		if d.RateLimit != nil && d.RateLimit.Name != "" {
			w.names[d.RateLimit.Name] = true
		}
		w.collect(d.below())
	}
}

func (w *warner) warn(level []sibling) {
	var wide []sibling                     // with limits
	patterns := make(map[string][]sibling) // of values, by their keys
	for _, d := range level {
		if d.isWide() && d.limits() {
			wide = append(wide, d)
		}
	}
	for _, d := range level {
		before := patterns[d.Key]
		if strings.Contains(d.Value, "*") {
			patterns[d.Key] = append(before, d)
		}
		if !d.limits() {
			if !slices.ContainsFunc(wide, func(s sibling) bool { return s.covers(d) }) {
				w.add(d.source, "%s, of key %q, has no effect: neither it nor a descriptor below it has a rate_limit, and it is no exception to another that has one", d.place, d.Key)
			}
			continue
		}
		if i := slices.IndexFunc(before, func(s sibling) bool { return s.hides(d) }); i >= 0 {
			all := "every value"
			if before[i].Value != "*" {
				all = fmt.Sprintf("every value that %q does; put the wider pattern behind", d.Value)
			}
			w.add(d.source, "%s, of key %q, has no effect: %s, before it, matches %s", d.place, d.Key, before[i].place, all)
		}
		w.warnOfText(d)
		w.warnOfLimit(d)
		w.warn(d.below())
	}
}

// warnOfText warns of a key or a value that no request is likely to have.
func (w *warner) warnOfText(d sibling) {
	for _, text := range []struct{ name, value string }{{"key", d.Key}, {"value", d.Value}} {
		if v := text.value; strings.Contains(v, ".*") || strings.HasPrefix(v, "^") && strings.HasSuffix(v, "$") {
			w.add(d.source, "%s.%s is %q, which is no regular expression here: * is for any number of characters, and the others are themselves", d.place, text.name, v)
		} else if strings.TrimSpace(v) != v {
			w.add(d.source, "%s.%s is %q, with white space at an end, which a request must have, too", d.place, text.name, v)
		}
	}
}

// warnOfLimit warns of what has no effect in d alone.
func (w *warner) warnOfLimit(d sibling) {
	if d.RateLimit == nil {
		for _, mode := range []struct {
			name string
			set  bool
		}{{"shadow_mode", d.ShadowMode}, {"quota_mode", d.QuotaMode}, {"detailed_metric", d.DetailedMetric}} {
			if mode.set {
				w.add(d.source, "%s.%s has no effect: the descriptor has no rate_limit, and the mode is not for those below it", d.place, mode.name)
			}
		}
		return
	}
	for i, r := range d.RateLimit.Replaces {
		if !w.names[r.Name] {
			w.add(d.source, "%s.rate_limit.replaces[%d] has no effect: no limit of the domain has the name %q", d.place, i, r.Name)
		}
	}
}
