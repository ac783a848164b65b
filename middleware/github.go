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
	s := r.summary()
	var digits [96]byte
	b := strconv.AppendInt(digits[:0], s.capacity, 10)
	limit := len(b)
	b = strconv.AppendInt(b, s.remaining, 10)
	remaining := len(b)
	b = strconv.AppendInt(b, s.used, 10)
	used := len(b)
	b = strconv.AppendInt(b, epochSeconds(s.resetAt), 10)
	numbers := string(b)
	r.values = [...]string{numbers[:limit], numbers[limit:remaining], numbers[remaining:used], numbers[used:], s.policy}
	for i, name := range [...]string{headerLimit, headerRemaining, headerUsed, headerReset, headerResource} {
		h[name] = r.values[i : i+1 : i+1]
	}
}

// summary is what GitHub's headers say of a limit.
type summary struct {
	capacity, remaining, used int64
	resetAt                   int64 // in ms since the epoch
	policy                    string
}

// summary returns the summary of the limit that binds.
func (r *Report) summary() summary {
	if d := r.takes[0].d.Driver(); len(r.takes) == 1 && len(d.Results()) == 1 { // to make a Status would be the slowest part
		c, result := &d.Charges()[0], &d.Results()[0]
		l := &c.Policy.Limits[0]
		s := summary{l.Capacity(), result.Remaining(l), result.Used, result.ResetAt, c.Policy.Name}
		if s.remaining == 0 {
			s.resetAt = result.Next(l)
		}
		return s
	}
	s := r.Binding()
	return summary{s.Limit.Capacity(), s.Remaining, s.Used, s.Reset().UnixMilli(), s.Policy.Name}
}
