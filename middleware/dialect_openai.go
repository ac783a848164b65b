package middleware

import (
	"encoding/json"
	"net/http"

	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// OpenAI is the dialect of OpenAI's API: x-ratelimit-limit-requests,
// x-ratelimit-remaining-requests and x-ratelimit-reset-requests, a duration from now such as
// 6m0s. They report the limit that binds among policies with the unit requests. The headers
// that end in -tokens report policies with any other unit. Without such a policy, the headers
// are left out.
type OpenAI struct{}

// tokenUnits are the units that are tokens of some kind.
var tokenUnits = []quota.Unit{quota.Tokens, quota.InputTokens, quota.OutputTokens}

var openAI = table{
	{"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", []quota.Unit{quota.Requests}},
	{"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", tokenUnits},
}

// Names returns the six names.
func (OpenAI) Names() []string { return openAI.names() }

// Write writes the headers of the units that have a limit in r.
func (OpenAI) Write(h http.Header, r *Report) {
	now := r.Now()
	openAI.write(h, r, func(s *decision.Status) string { return max(s.Reset().Sub(now), 0).String() })
}

// ErrorBody returns an error object of OpenAI's API. The type of a refusal is requests or
// tokens, by the limit's unit.
func (OpenAI) ErrorBody(status int, unit quota.Unit, message string) []byte {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	e := object{Message: message, Type: "server_error"}
	if status < http.StatusInternalServerError {
		code := "rate_limit_exceeded"
		e.Type, e.Code = "tokens", &code
		if unit == quota.Requests {
			e.Type = "requests"
		}
	}
	body, _ := json.Marshal(map[string]object{"error": e}) // strings have no error
	return body
}
