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
	b, ends := digits[:0], [4]int{}
	for i, n := range [...]int64{l.limit.Capacity(), s.Remaining(l.limit), s.Used, epochSeconds(s.Reset(l.limit))} {
		b = strconv.AppendInt(b, n, 10)
		ends[i] = len(b)
	}
	numbers, begin := string(b), 0
	for i, end := range ends {
		r.values[i], begin = numbers[begin:end], end
	}
	r.values[len(ends)] = l.policy.Name
	for i, name := range [...]string{headerLimit, headerRemaining, headerUsed, headerReset, headerResource} {
		h[name] = r.values[i : i+1 : i+1]
	}
}
