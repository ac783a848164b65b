package forwardauth

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// path is a pattern: /login, /v1/ for all under it, /users/{id}, /files/{path...} or /{$}, as in
// net/http.ServeMux.
type path struct {
	text     string
	segments []string // "" for a wildcard
	end      end
}

// end is how a path ends.
type end uint8

const (
	segmentEnd end = iota // with its last segment
	slashEnd              // /{$}: with or without a slash
	subtree               // / or /{name...}: also all paths under it
)

var wildcard = regexp.MustCompile(`^\{[\pL_][\pL\pN_]*\}$`)

func (p *path) UnmarshalText(text []byte) error {
	*p = path{text: string(text)}
	tail, ok := strings.CutPrefix(p.text, "/")
	if !ok {
		return errors.New("it must be a path, such as /login, /v1/ for all under it, or /users/{id}")
	}
	for again := true; again; {
		var segment string
		segment, tail, again = strings.Cut(tail, "/")
		switch {
		case !again && segment == "":
			p.end = subtree
		case !again && segment == "{$}":
			p.end = slashEnd
		case !again && strings.HasSuffix(segment, "...}") && wildcard.MatchString(strings.TrimSuffix(segment, "...}")+"}"):
			p.end = subtree
		case wildcard.MatchString(segment):
			p.segments = append(p.segments, "")
		default:
			if right := p.rightFor(segment); right != "" {
				return errors.New("it must be " + right)
			}
			p.segments = append(p.segments, segment)
		}
	}
	return nil
}

// rightFor returns what a path must be whose segment would never match, or "".
func (p *path) rightFor(segment string) string {
	until := p.text[:strings.Index(p.text, segment)]
	switch {
	case strings.Contains(segment, "*"):
		return fmt.Sprintf("%s for all under it, or have a name such as {id} for one segment: '*' is no wildcard", until[:strings.LastIndexByte(until, '/')+1])
	case strings.HasPrefix(segment, ":"):
		return fmt.Sprintf("written with {%s}: ':' is no wildcard", segment[1:])
	case strings.ContainsAny(segment, "?#"):
		return fmt.Sprintf("%s: a path has no query", p.text[:strings.IndexAny(p.text, "?#")])
	case strings.Contains(segment, "%"):
		return "written decoded: it is compared with decoded paths, too"
	case segment == "" || segment == "." || segment == "..":
		return "without empty segments, '.' and '..': paths are compared without them, too"
	case strings.ContainsAny(segment, `{}[]|^<>\`+"`"):
		return "a path, such as /login, /v1/ for all under it, or /users/{id}; it is no regular expression"
	case strings.ContainsFunc(segment, unicode.IsControl) || strings.Contains(segment, ";"):
		return "without control characters and parameters: paths are compared without them, too"
	}
	return ""
}

// matches reports whether a reading of a path is p. If loose, it may differ in case and in what
// comes at its end: slashes, dots, spaces, an ending.
func (p *path) matches(reading string, loose bool) bool {
	if loose {
		reading = "/" + strings.TrimRightFunc(reading[1:], isIgnoredAtEnd)
	}
	tail, slash := reading[1:], true // more: a slash comes before rest
	for _, want := range p.segments {
		if !slash {
			return false
		}
		var segment string
		segment, tail, slash = strings.Cut(tail, "/")
		if loose {
			segment = strings.TrimRightFunc(segment, isIgnoredAtEnd)
		}
		switch {
		case want == "" && segment != "", want != "" && segment == want:
		case want == "":
			return false
		case loose && strings.EqualFold(segment, want):
		case loose && !slash && strings.EqualFold(withoutEnding(segment), want):
		default:
			return false
		}
	}
	switch p.end {
	case subtree:
		return true
	case slashEnd:
		return tail == ""
	default:
		return !slash
	}
}

func isIgnoredAtEnd(c rune) bool {
	return c == '/' || c == '.' || unicode.IsSpace(c) || unicode.IsControl(c)
}

// withoutEnding returns a segment without an ending such as .json.
func withoutEnding(segment string) string {
	if i := strings.IndexByte(segment, '.'); i > 0 {
		return segment[:i]
	}
	return segment
}

// contains reports whether p matches all paths that other matches.
func (p *path) contains(q *path) bool {
	if len(p.segments) > len(q.segments) || p.end != subtree && (p.end != q.end || len(p.segments) != len(q.segments)) {
		return false
	}
	for i, s := range p.segments {
		if s != "" && s != q.segments[i] {
			return false
		}
	}
	return true
}

// isAll reports whether p matches all paths.
func (p *path) isAll() bool { return p.end == subtree && len(p.segments) == 0 }
