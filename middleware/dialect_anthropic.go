package middleware

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// Anthropic is the dialect of Anthropic's API: anthropic-ratelimit-requests-limit, -remaining
// and -reset, an RFC 3339 time in whole seconds, rounded up. They report the limit that binds
// among policies with the unit requests. The headers of input-tokens and output-tokens report
// policies with that unit, and the headers of tokens policies that count tokens of any kind.
// Without such a policy, the headers are left out.
type Anthropic struct{}

var anthropic = table{
	anthropicRow("requests", quota.Requests),
	anthropicRow("tokens", tokenUnits...),
	anthropicRow("input-tokens", quota.InputTokens),
	anthropicRow("output-tokens", quota.OutputTokens),
}

func anthropicRow(name string, units ...quota.Unit) row {
	name = "anthropic-ratelimit-" + name
	return row{name + "-limit", name + "-remaining", name + "-reset", units}
}

// Names returns the twelve names.
func (Anthropic) Names() []string { return anthropic.names() }

// Write writes the headers of the units that have a limit in r.
func (Anthropic) Write(h http.Header, r *Report) {
	anthropic.write(h, r, func(s *decision.Status) string {
		return time.Unix(epochSeconds(s.Reset().UnixMilli()), 0).UTC().Format(time.RFC3339)
	})
}

// ErrorBody returns an error of Anthropic's API: a rate_limit_error, permission_error for 403,
// or api_error.
func (Anthropic) ErrorBody(status int, _ quota.Unit, message string) []byte {
	type object struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	e := object{"rate_limit_error", message}
	switch {
	case status >= http.StatusInternalServerError:
		e.Type = "api_error"
	case status == http.StatusForbidden:
		e.Type = "permission_error"
	}
	body, _ := json.Marshal(struct {
		Type  string `json:"type"`
		Error object `json:"error"`
	}{"error", e})
	return body
}
