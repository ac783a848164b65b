package forwardauth

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of the readings of a path. A path with more is refused: no client needs one, and each
// reading is matched with the rules.
const (
	maxReadings     = 32
	maxReadingBytes = 64 << 10
)

// readings are the paths that servers may take a path for.
type readings struct {
	paths     []string // the first is the path as sent
	ambiguous bool     // a server may read another path than its neighbor does
}

// read returns the readings of a path as sent, which begins with a slash. It returns false if
// there are too many, or if an escape is invalid.
//
// A server decodes a path once, repeatedly, or except for its slashes; it takes out dot
// segments and empty ones, parameters and control characters; it takes a backslash, an overlong
// or a full-width character for the one that it looks like; it ends the path at a NUL, or at a
// decoded '?' or '#'. It does some of these in some order, so each step is applied to each
// reading.
func read(sent string) (r readings, ok bool) {
	if isPlain(sent) {
		return readings{paths: []string{sent}}, true
	}
	start, ok := decode(sent, onlyEncoded)
	if !ok {
		return readings{}, false
	}
	// A character outside of ASCII has one spelling in a URI: servers that do not decode compare it, too.
	r = readings{paths: []string{start}, ambiguous: hasControl(start) || !utf8.ValidString(start)}
	size := len(start)
	for i := 0; i < len(r.paths); i++ {
		for n := range steps {
			next := steps[n].do(r.paths[i])
			if next == r.paths[i] {
				continue
			}
			// A decoding that changes what a step has left is a repeated one.
			if steps[n].ambiguous || n < decodings && (i > 0 || hidesStructure(r.paths[i], next)) {
				r.ambiguous = true
			}
			if slices.Contains(r.paths, next) {
				continue
			}
			if size += len(next); size > maxReadingBytes || len(r.paths) == maxReadings {
				return readings{}, false
			}
			r.paths = append(r.paths, next)
		}
	}
	return r, true
}

// decodings is the number of steps that decode, which are the first.
const decodings = 2

// steps are what servers do to a path. Each returns the path itself if it changes nothing.
// Parameters alone make no path ambiguous: it is free only if it is free without them, too.
var steps = []struct {
	do        func(path string) string
	ambiguous bool
}{
	{func(p string) string { return mustDecode(p, func(byte) bool { return true }) }, false},
	{func(p string) string { return mustDecode(p, func(c byte) bool { return c != '/' }) }, false},
	{withoutParameters, false},
	{withoutEmptySegments, true},
	{withoutHost, true},
	{withoutDotSegments, true},
	{withoutLastDots, true},
	{func(p string) string { return strings.ReplaceAll(p, `\`, "/") }, true},
	{folded, true},
	{withoutControls, true},
	{func(p string) string { return before(p, '\x00') }, true},
	{func(p string) string { return before(p, '?') }, true},
	{func(p string) string { return before(p, '#') }, true},
}

// isPlain reports whether all servers read a path as it was sent.
func isPlain(path string) bool {
	for i := range len(path) {
		if !literal[path[i]] {
			return false
		}
	}
	return !strings.Contains(path, "//") && !strings.Contains(path, "/./") && !strings.Contains(path, "/../") && !strings.HasSuffix(path, "/.") && !strings.HasSuffix(path, "/..")
}

// literal are the bytes that a path contains literally, and that separate no parameters.
var literal = func() (table [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,=:@/") {
		table[c] = true
	}
	return table
}()

// onlyEncoded reports whether a byte has no other spelling in a path than its escape.
func onlyEncoded(c byte) bool {
	return !literal[c] && c >= ' ' && c != 0x7f && !strings.ContainsRune(`%;?#\`, rune(c))
}

// decode replaces the escapes of the bytes that are wanted. It returns false if an escape is
// invalid.
func decode(path string, wanted func(c byte) bool) (decoded string, ok bool) {
	i := strings.IndexByte(path, '%')
	if i < 0 {
		return path, true
	}
	ok = true
	to := append(make([]byte, 0, len(path)), path[:i]...)
	for ; i < len(path); i++ {
		c, isHex := byte(0), false
		if path[i] == '%' {
			c, isHex = unhex(path[i+1:])
			ok = ok && isHex
		}
		if isHex && wanted(c) {
			to = append(to, c)
			i += 2
			continue
		}
		to = append(to, path[i])
	}
	return string(to), ok
}

// mustDecode is decode for a path in which a '%' may be a character.
func mustDecode(path string, wanted func(c byte) bool) string {
	path, _ = decode(path, wanted)
	return path
}

func unhex(s string) (c byte, ok bool) {
	if len(s) < 2 {
		return 0, false
	}
	for i := range 2 {
		switch d := s[i]; {
		case '0' <= d && d <= '9':
			c = c<<4 | (d - '0')
		case 'a' <= d|0x20 && d|0x20 <= 'f':
			c = c<<4 | (d | 0x20 - 'a' + 10)
		default:
			return 0, false
		}
	}
	return c, true
}

// hidesStructure reports whether decoded has more than encoded of the characters that separate
// parts of a path.
func hidesStructure(encoded, decoded string) bool {
	for _, c := range []string{"/", ".", `\`, "?", "#"} {
		if strings.Count(encoded, c) != strings.Count(decoded, c) {
			return true
		}
	}
	return hasControl(decoded)
}

func isControl(c byte) bool { return c < ' ' || c == 0x7f }

func hasControl(path string) bool {
	for i := range len(path) {
		if isControl(path[i]) {
			return true
		}
	}
	return false
}

func withoutControls(path string) string {
	if !hasControl(path) {
		return path
	}
	to := make([]byte, 0, len(path))
	for i := range len(path) {
		if !isControl(path[i]) {
			to = append(to, path[i])
		}
	}
	return string(to)
}

func before(path string, c byte) string {
	if i := strings.IndexByte(path, c); i > 0 {
		return path[:i]
	}
	return path
}

// withoutParameters takes out ";x=1" from each segment, as Tomcat does.
func withoutParameters(path string) string {
	if strings.IndexByte(path, ';') < 0 {
		return path
	}
	to, skip := make([]byte, 0, len(path)), false
	for i := range len(path) {
		switch path[i] {
		case ';':
			skip = true
		case '/':
			skip = false
		}
		if !skip {
			to = append(to, path[i])
		}
	}
	return string(to)
}

func withoutEmptySegments(path string) string {
	if !strings.Contains(path, "//") {
		return path
	}
	to := make([]byte, 0, len(path))
	for i := range len(path) {
		if path[i] != '/' || i == 0 || path[i-1] != '/' {
			to = append(to, path[i])
		}
	}
	return string(to)
}

// withoutHost takes out the host that a path with two slashes begins with for a parser of URLs.
func withoutHost(path string) string {
	if !strings.HasPrefix(path, "//") || strings.HasPrefix(path, "///") {
		return path
	}
	if i := strings.IndexByte(path[2:], '/'); i >= 0 {
		return path[2+i:]
	}
	return "/"
}

// withoutDotSegments is remove_dot_segments of RFC 3986, which keeps empty segments.
func withoutDotSegments(path string) string {
	if !strings.Contains(path, "/.") {
		return path
	}
	to := make([]byte, 0, len(path))
	for tail := path; tail != ""; {
		end := strings.IndexByte(tail[1:], '/') + 1
		if end == 0 {
			end = len(tail)
		}
		segment := tail[:end]
		tail = tail[end:]
		switch segment {
		case "/..":
			to = to[:max(0, bytes.LastIndexByte(to, '/'))]
			fallthrough
		case "/.":
			if tail == "" {
				to = append(to, '/')
			}
		default:
			to = append(to, segment...)
		}
	}
	if len(to) == 0 {
		return "/"
	}
	return string(to)
}

// withoutLastDots is withoutDotSegments for a path that ends in one, without the slash that
// RFC 3986 leaves there.
func withoutLastDots(path string) string {
	if !strings.HasSuffix(path, "/.") && !strings.HasSuffix(path, "/..") {
		return path
	}
	if clean := withoutDotSegments(path); clean != "/" {
		return strings.TrimSuffix(clean, "/")
	}
	return path
}

// folded replaces characters that some servers take for characters of ASCII: full-width forms,
// and encodings in UTF-8 that are longer than they need to be.
func folded(path string) string {
	var to []byte
	for i := 0; i < len(path); {
		c, n := rune(path[i]), 1
		if c >= utf8.RuneSelf {
			if c, n = utf8.DecodeRuneInString(path[i:]); n == 1 {
				c, n = overlong(path[i:])
			}
			if c >= 0xff01 && c <= 0xff5e {
				c -= 0xff01 - '!'
			}
			if c < utf8.RuneSelf && to == nil {
				to = append(make([]byte, 0, len(path)), path[:i]...)
			}
		}
		switch {
		case to == nil:
		case c < utf8.RuneSelf:
			to = append(to, byte(c))
		default:
			to = append(to, path[i:i+n]...)
		}
		i += n
	}
	if to == nil {
		return path
	}
	return string(to)
}

// overlong returns the character of ASCII that s begins with in two to four bytes, and their
// number, or RuneError and 1.
func overlong(s string) (c rune, n int) {
	switch {
	case s[0]&0xfe == 0xc0:
		c, n = rune(s[0]&1), 2
	case s[0] == 0xe0:
		n = 3
	case s[0] == 0xf0:
		n = 4
	}
	if n == 0 || len(s) < n {
		return utf8.RuneError, 1
	}
	for i := 1; i < n; i++ {
		if c = c<<6 | rune(s[i]&0x3f); s[i]&0xc0 != 0x80 {
			return utf8.RuneError, 1
		}
	}
	if c >= utf8.RuneSelf {
		return utf8.RuneError, 1
	}
	return c, n
}
