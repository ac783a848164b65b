package middleware

import (
	"net/http"
	"strconv"

	"github.com/weir-go/weir/throttler/decision"
)

// Draft3 is the headers of the IETF draft's third version, which many clients and proxies
// still speak: RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, which is seconds
// from now, rounded up. They are about the limit that binds.
type Draft3 struct{}

var draft3 = table{{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", nil}}

// Names returns the three names.
func (Draft3) Names() []string { return draft3.names() }

// Write writes all three.
func (Draft3) Write(h http.Header, r *Report) {
	now := r.Now()
	draft3.write(h, r, func(s *decision.Status) string { return strconv.FormatInt(seconds(s.Reset().Sub(now)), 10) })
}
