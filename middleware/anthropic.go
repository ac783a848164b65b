package middleware

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/weir/quota"
)

// Anthropic is the headers of Anthropic's API: anthropic-ratelimit-requests-limit,
// -remaining and -reset, an RFC 3339 time in whole seconds, rounded up. They are about the
// limit that binds among policies whose unit is requests. Headers of input-tokens and
// output-tokens are about policies with that unit, and of tokens about all policies
// whose unit is tokens of some kind. If there is no such policy, there are no such headers.
type Anthropic struct{}

var anthropicGroups = [...]struct {
	name  string
	units []quota.Unit
}{
	{"requests", []quota.Unit{quota.Requests}},
	{"tokens", tokenUnits},
	{"input-tokens", []quota.Unit{quota.InputTokens}},
	{"output-tokens", []quota.Unit{quota.OutputTokens}},
}

const anthropicPrefix = "anthropic-ratelimit-"

// Names returns the twelve names.
func (Anthropic) Names() (names []string) {
	for _, of := range anthropicGroups {
		names = append(names, anthropicPrefix+of.name+"-limit", anthropicPrefix+of.name+"-remaining", anthropicPrefix+of.name+"-reset")
	}
	return names
}

// Write writes the headers of the units that there are.
func (Anthropic) Write(h http.Header, r *Report) {
	for _, of := range anthropicGroups {
		s, ok := r.BindingOf(of.units...)
		if !ok {
			continue
		}
		reset := time.Unix(epochSeconds(s.Reset().UnixMilli()), 0).UTC()
		h.Set(anthropicPrefix+of.name+"-limit", strconv.FormatInt(s.Limit.Capacity(), 10))
		h.Set(anthropicPrefix+of.name+"-remaining", strconv.FormatInt(s.Remaining, 10))
		h.Set(anthropicPrefix+of.name+"-reset", reset.Format(time.RFC3339))
	}
}
