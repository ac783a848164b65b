package middleware

import (
	"net/http"
	"strconv"
)

// Draft3 is the headers of the IETF draft's third version, which many clients and proxies
// still speak: RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, which is seconds
// from now, rounded up. They are about the limit that binds.
type Draft3 struct{}

// Names returns the three names.
func (Draft3) Names() []string {
	return []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}
}

// Write writes all three.
func (Draft3) Write(h http.Header, r *Report) {
	s := r.Binding()
	h.Set("Ratelimit-Limit", strconv.FormatInt(s.Limit.Capacity(), 10))
	h.Set("Ratelimit-Remaining", strconv.FormatInt(s.Remaining, 10))
	h.Set("Ratelimit-Reset", strconv.FormatInt(seconds(s.Reset().Sub(r.Now())), 10))
}
