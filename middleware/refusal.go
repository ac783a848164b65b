package middleware

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/weir-go/weir/throttler"
)

// refuse answers a request that had no room.
func (t *throttle) refuse(w http.ResponseWriter, e *entry) {
	e.answerInPlace(w)
	h := w.Header()
	// A charge that can never fit has no time to come back at.
	if retryAt := e.d.RetryAt(); !retryAt.Equal(throttler.Never) {
		h.Set("Retry-After", strconv.FormatInt(max(seconds(retryAt.Sub(e.d.At())), 1), 10))
	}
	if t.Refuse != nil {
		t.Refuse(w, e.received, e.d)
		return
	}
	p := problem{
		Type:   "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:  "Quota exceeded",
		Detail: refusalText(e.d),
	}
	for i := range e.d.Limits() {
		name := e.d.Limit(i).Policy.Name
		if e.d.Limit(i).Refused && (len(p.Violated) == 0 || p.Violated[len(p.Violated)-1] != name) {
			p.Violated = append(p.Violated, name)
		}
	}
	t.writeProblem(w, e.received, t.RefusalStatus, p)
}

// answerUnavailable answers 503 in place of the handler. If e has a decision, its
// charge was given back.
func (t *throttle) answerUnavailable(w http.ResponseWriter, e *entry, detail string) {
	e.answerInPlace(w)
	w.Header().Set("Retry-After", "1")
	t.writeProblem(w, e.received, http.StatusServiceUnavailable, problem{
		Type:   "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
		Title:  "Temporarily reduced capacity",
		Detail: detail,
	})
}

// answerInvalid answers 500: the server's policies or costs are wrong.
func (t *throttle) answerInvalid(w http.ResponseWriter, e *entry) {
	e.answerInPlace(w)
	t.writeProblem(w, e.received, http.StatusInternalServerError, problem{
		Type:   "about:blank",
		Title:  http.StatusText(http.StatusInternalServerError),
		Detail: "The rate limit of this request is not configured correctly.",
	})
}

// answerInPlace accounts for a request whose handler does not run. Others are
// refunded when that response begins, and only if it does: a handler between may
// send something else.
func (e *entry) answerInPlace(w http.ResponseWriter) {
	e.answered = true
	e.add()
	e.l.writeHeaders(w.Header())
	w.Header().Set("Cache-Control", "no-store")
}

// refusalText says which limit refused and when it frees. It begins as
// GitHub's does and must not speak of a secondary rate limit: clients look for
// those words.
func refusalText(d throttler.Decision) string {
	s := d.Binding()
	if s.RetryAt.Equal(throttler.Never) {
		return fmt.Sprintf("API rate limit exceeded: this request costs %d, and %s allows no more than %d at once.", s.Cost, s.Policy.Name, s.Limit.Capacity())
	}
	return fmt.Sprintf("API rate limit exceeded: %s allows %d per %s. Try again in %d s.",
		s.Policy.Name, s.Limit.Quota, formatDuration(s.Limit.Window), max(seconds(s.RetryAt.Sub(d.At())), 1))
}

// problem is the body of a response that the middleware makes, as RFC 9457 has
// it. In GitHub's shape, Detail is the message.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies,omitempty"`
}

func (t *throttle) writeProblem(w http.ResponseWriter, r *http.Request, status int, p problem) {
	p.Status = status
	contentType := "application/json; charset=utf-8"
	var body any = struct {
		Message          string `json:"message"`
		DocumentationURL string `json:"documentation_url,omitempty"`
	}{p.Detail, t.DocumentationURL}
	if prefersProblem(r.Header.Values("Accept")) {
		contentType, body = "application/problem+json", p
	}
	encoded, err := json.Marshal(body)
	if err != nil { // strings and a number: it cannot fail
		panic(err)
	}
	encoded = append(encoded, '\n')
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(encoded)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(encoded) // the client may have left
	}
}

// prefersProblem reports whether Accept names application/problem+json, and
// application/json not before it.
func prefersProblem(accept []string) bool {
	asked := map[string]float64{}
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		mediaType, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		asked[mediaType] = 1
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			asked[mediaType] = q
		}
	}
	q := asked["application/problem+json"]
	return q > 0 && q >= asked["application/json"]
}
