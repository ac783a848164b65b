package middleware

import (
	"net/http"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/decision"
)

// OpenAI is the headers of OpenAI's API: x-ratelimit-limit-requests,
// x-ratelimit-remaining-requests and x-ratelimit-reset-requests, a duration from now such as
// 6m0s. They are about the limit that binds among policies whose unit is requests. Those that
// end in -tokens are about policies with any of the other units. If there is no such policy, there
// are no such headers.
type OpenAI struct{}

// tokenUnits are the units that are tokens of some kind.
var tokenUnits = []quota.Unit{quota.Tokens, quota.InputTokens, quota.OutputTokens}

var openAI = table{
	{"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", []quota.Unit{quota.Requests}},
	{"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", tokenUnits},
}

// Names returns the six names.
func (OpenAI) Names() []string { return openAI.names() }

// Write writes the headers of the units that there are.
func (OpenAI) Write(h http.Header, r *Report) {
	now := r.Now()
	openAI.write(h, r, func(s *decision.Status) string { return max(s.Reset().Sub(now), 0).String() })
}
