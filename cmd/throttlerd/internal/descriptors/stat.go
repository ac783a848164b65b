package descriptors

import "strings"

// Stat returns the name of the counters of r for a request's entries, as in envoyproxy/ratelimit.
// It has the domain, all keys, and the values that the file asks for. r is nil for a descriptor
// that brings its own limit.
func (d *Domain) Stat(r *Rule, entries Entries) string {
	name := d.name
	if r == nil && len(entries) == 0 {
		return name + "."
	}
	shared := false
	place := &d.node
	for _, e := range entries {
		key, value := e.GetKey(), e.GetValue()
		if r == nil {
			name += "." + joined(key, value)
			continue
		}
		next := place.find(key, value)
		shared = shared || next.shared != ""
		if !r.detailed || next.shared != "" {
			value = next.stat(key, value)
		}
		name += "." + joined(key, value)
		place = next
	}
	if r != nil && r.detailed && !shared { // with an underscore after each key
		name = d.name
		for _, e := range entries {
			name += "." + e.GetKey() + "_" + e.GetValue()
		}
	}
	return name
}

// LosesMetadata reports whether envoyproxy/ratelimit loses the metadata of r, whose counters are
// called stat: it copies a limit whose counters depend on the request, without the metadata.
func (r *Rule) LosesMetadata(stat string) bool {
	if r.detailed {
		return r.leaf
	}
	return stat != r.Path
}

func joined(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// stat returns the value in a name of an entry at n.
func (n *node) stat(key, value string) string {
	switch {
	case n.full == key+"_"+value:
		return value
	case n.shared == "" && n.valued:
		return value
	case strings.Contains(n.full, "*"):
		return strings.TrimPrefix(n.full, key+"_")
	}
	return ""
}
