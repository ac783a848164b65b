package middleware

import (
	"net/http"
	"strconv"

	"github.com/weir-go/weir/quota"
)

// OpenAI is the headers of OpenAI's API: x-ratelimit-limit-requests,
// x-ratelimit-remaining-requests and x-ratelimit-reset-requests, a duration from now such as
// 6m0s. They are about the limit that binds among policies whose unit is requests. Those that
// end in -tokens are about policies with any of the other units. If there is no such policy, there
// are no such headers.
type OpenAI struct{}

var openAIGroups = [...]struct {
	name  string
	units []quota.Unit
}{
	{"requests", []quota.Unit{quota.Requests}},
	{"tokens", tokenUnits},
}

// tokenUnits are the units that are tokens of some kind.
var tokenUnits = []quota.Unit{quota.Tokens, quota.InputTokens, quota.OutputTokens}

// Names returns the six names.
func (OpenAI) Names() (names []string) {
	for _, of := range openAIGroups {
		names = append(names, "x-ratelimit-limit-"+of.name, "x-ratelimit-remaining-"+of.name, "x-ratelimit-reset-"+of.name)
	}
	return names
}

// Write writes the headers of the units that there are.
func (OpenAI) Write(h http.Header, r *Report) {
	for _, of := range openAIGroups {
		s, ok := r.BindingOf(of.units...)
		if !ok {
			continue
		}
		h.Set("X-Ratelimit-Limit-"+of.name, strconv.FormatInt(s.Limit.Capacity(), 10))
		h.Set("X-Ratelimit-Remaining-"+of.name, strconv.FormatInt(s.Remaining, 10))
		h.Set("X-Ratelimit-Reset-"+of.name, max(s.Reset().Sub(r.Now()), 0).String())
	}
}
