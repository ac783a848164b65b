package descriptors

import (
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// Entries are the entries of a request's descriptor.
type Entries = []*commonv3.RateLimitDescriptor_Entry

// Match returns the rule of a descriptor with these entries, or nil, and appends to key the
// name of its count: the domain and all entries, so that no two descriptors share a name. At
// each level it follows the descriptor with the entry's key and value, otherwise the first
// with a pattern that matches, otherwise the one with the key and no value. It doesn't
// backtrack: a limit holds only if it is as deep as the entries.
func (d *Domain) Match(key []byte, entries Entries) (*Rule, []byte) {
	key = append(key, d.key...)
	position := &d.node
	for i, e := range entries {
		if i > 0 {
			key = append(key, '&')
		}
		next := position.find(e.GetKey(), e.GetValue())
		if next == nil {
			return nil, key
		}
		key = appendEscaped(key, e.GetKey())
		if next.shared != "" {
			key = appendEscaped(append(key, '~'), next.shared) // no entry has this form: entries have '='
		} else {
			key = appendEscaped(append(key, '='), e.GetValue())
		}
		position = next
	}
	return position.rule, key
}

// Key appends the name of the count of a descriptor that brings its own limit.
func (d *Domain) Key(key []byte, entries Entries) []byte {
	key = append(key, d.key...)
	for i, e := range entries {
		if i > 0 {
			key = append(key, '&')
		}
		key = appendEscaped(key, e.GetKey())
		key = appendEscaped(append(key, '='), e.GetValue())
	}
	return key
}

func (n *node) find(key, value string) *node {
	if n.joined != nil {
		return n.findJoined(key, key+"_"+value)
	}
	if next := n.exact[pair{key, value}]; next != nil {
		return next
	}
	for i := range n.patterns {
		if p := &n.patterns[i]; p.key.match(key) && (p.anyValue || p.value.match(value)) {
			return p.next
		}
	}
	return n.byKey[key]
}

// findJoined is find, to be compatible.
func (n *node) findJoined(key, full string) *node {
	if next := n.joined[full]; next != nil {
		return next
	}
	for i := range n.patterns {
		if p := &n.patterns[i]; p.full.match(full) {
			return p.next
		}
	}
	return n.joined[key]
}

// match reports whether s contains the parts in order, the first at its beginning and the last
// at its end.
func (p parts) match(s string) bool {
	if len(p) == 1 {
		return s == p[0]
	}
	first, last := p[0], p[len(p)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range p[1 : len(p)-1] {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return true
}

const hexDigits = "0123456789ABCDEF"

// appendEscaped appends text, and escapes the bytes that separate the parts of a key.
func appendEscaped(to []byte, text string) []byte {
	for i := range len(text) {
		switch c := text[i]; c {
		case '%', '&', '=', '?', '~':
			to = append(to, '%', hexDigits[c>>4], hexDigits[c&15])
		default:
			to = append(to, c)
		}
	}
	return to
}

// LabelsOf returns the labels of r's metrics for a request's entries: r's own labels, unless r
// has detailed_metric, or its descriptor or one above has value_to_metric.
func (d *Domain) LabelsOf(r *Rule, entries Entries) Labels {
	if !r.valued {
		return r.Labels
	}
	labels := Labels{Domain: d.name}
	position := &d.node
	for i, e := range entries {
		next := position.find(e.GetKey(), e.GetValue())
		name := e.GetKey()
		if value := next.label(r, e.GetValue()); value != "" {
			name += "_" + value
		}
		switch i {
		case 0:
			labels.Key1 = name
		case 1:
			labels.Key2 = name
			return labels
		}
		position = next
	}
	return labels
}

// label returns the value of an entry at n in a label of r.
func (n *node) label(r *Rule, value string) string {
	switch {
	case n.shared != "":
		return n.shared
	case r.detailed, n.valued:
		return value
	}
	return n.value
}

// OverrideLabels returns the labels of a descriptor that brings its own limit.
func (d *Domain) OverrideLabels(entries Entries) Labels {
	labels := Labels{Domain: d.name}
	for i, e := range entries[:min(len(entries), 2)] {
		name := e.GetKey()
		if e.GetValue() != "" {
			name += "_" + e.GetValue()
		}
		*[]*string{&labels.Key1, &labels.Key2}[i] = name
	}
	return labels
}

// NewEntry returns an entry.
func NewEntry(key, value string) *commonv3.RateLimitDescriptor_Entry {
	return &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value}
}
