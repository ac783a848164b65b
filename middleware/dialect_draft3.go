package middleware

import (
	"net/http"
	"strconv"

	"github.com/weir-go/weir/throttler/decision"
)

// Draft3 is the dialect of the IETF draft's third version, which many clients and proxies
// still read: RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, in seconds from now,
// rounded up. They report the limit that binds.
type Draft3 struct{}

var draft3 = table{{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", nil}}

// Names returns the three names.
func (Draft3) Names() []string { return draft3.names() }

// Write writes all three.
func (Draft3) Write(h http.Header, r *Report) {
	now := r.Now()
	draft3.write(h, r, func(s *decision.Status) string { return strconv.FormatInt(seconds(s.Reset().Sub(now)), 10) })
}
