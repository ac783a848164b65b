package middleware

import (
	"encoding/json"
	"net/http"

	"github.com/weir-go/weir/quota"
)

// ErrorBody is a [Dialect] of an API that has its own form of errors. Refusals and other
// errors of the middleware have that form, in JSON, unless the client prefers
// application/problem+json, or Options.Refuse or Options.Unavailable answers.
type ErrorBody interface {
	Dialect

	// ErrorBody returns the body of an error. For a refusal, unit is the unit of the limit
	// that refused; otherwise it is the zero value.
	ErrorBody(status int, unit quota.Unit, message string) []byte
}

// errorBody returns the first of t's dialects that is an ErrorBody, or nil.
func (t *throttle) errorBody() ErrorBody {
	for _, d := range t.dialects {
		if b, ok := d.(ErrorBody); ok {
			return b
		}
	}
	return nil
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
