package middleware

import (
	"net/http"
	"strconv"
)

// GitHub is the dialect of GitHub's API, the default: X-RateLimit-Limit, -Remaining, -Used,
// -Reset (Unix seconds) and -Resource. They report the limit that binds.
type GitHub struct{}

// GitHub's names in Go's canonical case; on the wire case does not matter.
const (
	headerLimit     = "X-Ratelimit-Limit"
	headerRemaining = "X-Ratelimit-Remaining"
	headerUsed      = "X-Ratelimit-Used"
	headerReset     = "X-Ratelimit-Reset"
	headerResource  = "X-Ratelimit-Resource"
)

// Names returns the five names.
func (GitHub) Names() []string {
	return []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Used", "X-RateLimit-Reset", "X-RateLimit-Resource"}
}

// Write writes all five. To save allocations, since it runs on every response, the values are
// in r, and the numbers in one string.
func (GitHub) Write(h http.Header, r *Report) {
	l := r.bindingOf(nil)
	s := &l.take.d.Driver().Results()[l.index]
	var digits [96]byte
	b := strconv.AppendInt(digits[:0], l.limit.Capacity(), 10)
	limit := len(b)
	b = strconv.AppendInt(b, s.Remaining(l.limit), 10)
	remaining := len(b)
	b = strconv.AppendInt(b, s.Used, 10)
	used := len(b)
	b = strconv.AppendInt(b, epochSeconds(s.Reset(l.limit)), 10)
	numbers := string(b)
	r.values = [...]string{numbers[:limit], numbers[limit:remaining], numbers[remaining:used], numbers[used:], l.policy.Name}
	for i, name := range [...]string{headerLimit, headerRemaining, headerUsed, headerReset, headerResource} {
		h[name] = r.values[i : i+1 : i+1]
	}
}
