package middleware

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// IETF is the dialect of draft-ietf-httpapi-ratelimit-headers-11: two structured fields, with
// one item for each limit:
//
//	RateLimit-Policy: "core";q=60;w=3600
//	RateLimit: "core";r=59;t=3600
//
// The draft may still change them; nothing else depends on their form.
type IETF struct{}

// The fields' names in Go's canonical case.
const (
	headerPolicies = "Ratelimit-Policy"
	headerLimits   = "Ratelimit"
)

// Names returns the two names.
func (IETF) Names() []string { return []string{"RateLimit-Policy", "RateLimit"} }

// Write writes both. A policy's unit is the parameter qu, unless it is requests.
func (IETF) Write(h http.Header, r *Report) {
	policies, limits := make([]byte, 0, 96), make([]byte, 0, 96)
	now := r.Now()
	for s := range r.Limits() {
		if len(policies) > 0 {
			policies, limits = append(policies, ", "...), append(limits, ", "...)
		}
		name := fieldName(&s)
		policies = append(strconv.AppendQuote(policies, name), ";q="...)
		policies = strconv.AppendInt(policies, sfInteger(s.Limit.Quota), 10)
		held := s.Limit.Algorithm.Holds() // its window is a lease, which says nothing of the quota
		if unit := unitOf(&s, held); unit != "" {
			policies = strconv.AppendQuote(append(policies, ";qu="...), unit)
		}
		if w := int64(s.Limit.Window / time.Second); w > 0 && !held { // w is whole seconds, and optional: a calendar's windows differ
			policies = strconv.AppendInt(append(policies, ";w="...), w, 10)
		}
		limits = append(strconv.AppendQuote(limits, name), ";r="...)
		limits = strconv.AppendInt(limits, sfInteger(s.Remaining), 10)
		if !held || s.Remaining == 0 {
			limits = strconv.AppendInt(append(limits, ";t="...), seconds(s.Reset().Sub(now)), 10)
		}
	}
	h[headerPolicies] = []string{string(policies)}
	h[headerLimits] = []string{string(limits)}
}

// unitOf returns the parameter qu of a limit, or "" for requests, the default.
func unitOf(s *decision.Status, held bool) string {
	switch {
	case held:
		return "concurrent-requests" // the draft's own name
	case s.Policy.Unit == quota.Requests:
		return ""
	}
	return s.Policy.Unit.String()
}

// fieldName names a limit: by its policy and, if that has several limits, by its window, and
// by its algorithm if two have that window. Policy names need no escapes in a field's string.
func fieldName(s *decision.Status) string {
	if len(s.Policy.Limits) == 1 {
		return s.Policy.Name
	}
	name := s.Policy.Name + "-" + s.Limit.Per()
	for i := range s.Policy.Limits {
		if o := &s.Policy.Limits[i]; o.Per() == s.Limit.Per() && *o != s.Limit {
			return name + "-" + s.Limit.Algorithm.String()
		}
	}
	return name
}

// sfInteger bounds n to the 15 digits of a structured field's integer.
func sfInteger(n int64) int64 { return min(n, 999_999_999_999_999) }
