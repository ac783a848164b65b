package middleware

import (
	"net/http"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/decision"
)

// Anthropic is the headers of Anthropic's API: anthropic-ratelimit-requests-limit,
// -remaining and -reset, an RFC 3339 time in whole seconds, rounded up. They are about the
// limit that binds among policies whose unit is requests. Headers of input-tokens and
// output-tokens are about policies with that unit, and of tokens about all policies
// whose unit is tokens of some kind. If there is no such policy, there are no such headers.
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

// Write writes the headers of the units that there are.
func (Anthropic) Write(h http.Header, r *Report) {
	anthropic.write(h, r, func(s *decision.Status) string {
		return time.Unix(epochSeconds(s.Reset().UnixMilli()), 0).UTC().Format(time.RFC3339)
	})
}
