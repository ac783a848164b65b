package middleware

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// refuse answers a request that had no room.
func (t *throttle) refuse(w http.ResponseWriter, k *take) {
	d := &k.d
	wait, retryAfter := int64(0), ""
	// A charge that can never fit has no retry time.
	if retryAt := d.RetryAt(); !retryAt.Equal(decision.Never) {
		// The random numbers are seeded by the system, so that no client can guess them.
		wait = retryAfterSeconds(retryAt.Sub(d.At()), t.RetryAfterJitter*rand.Float64())
		retryAfter = strconv.FormatInt(wait, 10)
	}
	k.answerInPlace(w, retryAfter)
	var text [256]byte
	message := text[:0]
	if s, ok := d.Reported(); ok && s.Refused && !t.silent() {
		message = appendRefusal(message, d, &s, wait)
	} else {
		message = appendWait(append(message, refusalText...), wait)
	}
	t.answer(w, k, http.StatusTooManyRequests, nil, message)
}

// maxJitter bounds Options.RetryAfterJitter.
const maxJitter = 0.03

// maxWait is the longest wait in a refusal: 100 years. A difference of instants ends at
// the longest time.Duration, which can't be lengthened or rounded up.
const maxWait = 36525 * 24 * time.Hour

// retryAfterSeconds returns d, or maxWait if it is longer, lengthened by a part of it, in whole
// seconds, rounded up, at least 1.
func retryAfterSeconds(d time.Duration, part float64) int64 {
	d = min(d, maxWait)
	jitter := time.Duration(float64(d) * part)
	return max(seconds(d+jitter), 1)
}

// answerUnavailable answers 503 in place of the handler. If k has a decision, its charge has
// been refunded. The message is for the client, and says why if err is nil.
func (t *throttle) answerUnavailable(w http.ResponseWriter, k *take, message string, err error) {
	k.answerInPlace(w, "1")
	if err == nil {
		err = errors.New("middleware: " + message)
	}
	t.answer(w, k, http.StatusServiceUnavailable, err, []byte(message))
}

// answerInvalid answers 500: the server's policies or costs are wrong.
func (t *throttle) answerInvalid(w http.ResponseWriter, k *take, err error) {
	k.answerInPlace(w, "")
	t.answer(w, k, http.StatusInternalServerError, err, []byte("The rate limit of this request is not configured correctly."))
}

// answerInPlace accounts for a request that does not reach its handler. The outer entries are
// refunded when the response begins, and only if it does: a handler in between may send
// another one. If retryAfter is "", Retry-After is not set.
func (k *take) answerInPlace(w http.ResponseWriter, retryAfter string) {
	k.state = refused
	if k == &k.link.take {
		k.link.handler = finished // it does not run
	}
	k.add()
	h := w.Header()
	k.link.c.writeHeaders(h)
	values := &[...]string{"no-store", retryAfter}
	h["Cache-Control"] = values[0:1:1]
	if retryAfter != "" {
		h["Retry-After"] = values[1:2:2]
	}
}

// refusalText begins the text of a refusal.
const refusalText = "API rate limit exceeded"

// appendRefusal appends s, the limit of d that refused, and when to retry: in wait seconds, or never if
// wait is 0. The text begins as GitHub's does and must not mention a secondary rate limit:
// clients look for those words.
func appendRefusal(b []byte, d *throttler.Decision, s *decision.Status, wait int64) []byte {
	b = append(append(b, refusalText...), ": "...)
	if d.Blocked {
		b = append(append(b, s.Policy.Name...), " is blocked for this client"...)
		return appendWait(b, wait)
	}
	if wait == 0 && s.Cost > s.Limit.Capacity() {
		b = strconv.AppendInt(append(b, "this request costs "...), s.Cost, 10)
		b = append(append(append(b, ", and "...), s.Policy.Name...), " allows no more than "...)
		return append(strconv.AppendInt(b, s.Limit.Capacity(), 10), " at once."...)
	}
	allows := " allows "
	if d.Degraded {
		allows = " allows, at the moment, a part of "
	}
	b = strconv.AppendInt(append(append(b, s.Policy.Name...), allows...), s.Limit.Quota, 10)
	if s.Limit.Algorithm.Holds() {
		b = append(b, " at once"...)
	} else {
		b = append(append(b, " per "...), s.Limit.Per()...)
		if capacity := s.Limit.Capacity(); capacity != s.Limit.Quota {
			b = append(strconv.AppendInt(append(b, ", and "...), capacity, 10), " at once"...)
		}
	}
	if wait == 0 {
		return append(b, ". It is in debt beyond the year 9999."...)
	}
	return appendWait(b, wait)
}

// appendWait ends a sentence, and appends when to try again, unless wait is 0.
func appendWait(b []byte, wait int64) []byte {
	b = append(b, '.')
	if wait == 0 {
		return b
	}
	return append(strconv.AppendInt(append(b, " Try again in "...), wait, 10), " s."...)
}

// A Refusal is a response that the middleware sends in place of the handler's. A program may
// change its fields before it calls Write:
//
//	Refuse: func(w http.ResponseWriter, r *http.Request, x middleware.Refusal) {
//		if x.Decision.Blocked {
//			x.Status = http.StatusForbidden
//		}
//		x.Write(w, r)
//	}
type Refusal struct {
	// Status is 429 for a request that was refused, 503 for one that has no decision or can't
	// wait for its start, and 500 if a policy or cost is invalid. GitHub also refuses with 403,
	// which urllib3 and go-retryablehttp do not retry.
	Status int

	// Message is the text of the body. It tells the client why.
	Message string

	// DocumentationURL is a field of a body in GitHub's form. May be empty.
	DocumentationURL string

	// Decision is the zero value if there is none.
	Decision throttler.Decision

	// Err says why the request can't be served. It is nil if the request was refused.
	Err error

	form   ErrorBody // of an API that has its own, or nil
	silent bool      // the body says nothing of the limits
}

// Write writes the response. Its body is GitHub's, or an [ErrorBody]'s, or
// application/problem+json, by Accept.
func (x Refusal) Write(w http.ResponseWriter, r *http.Request) {
	x.write(w, r, []byte(x.Message), escape(x.Message))
}

// write writes the response. escaped is the message as it is in a JSON string.
func (x *Refusal) write(w http.ResponseWriter, r *http.Request, message, escaped []byte) {
	contentType, body := "application/json; charset=utf-8", []byte(nil)
	if prefersProblem(r.Header["Accept"]) {
		contentType, body = "application/problem+json", x.appendProblem(make([]byte, 0, 512), escaped)
	} else if x.form != nil {
		unit := quota.Requests
		if s, ok := x.refused(); ok {
			unit = s.Policy.Unit
		}
		contentType, body = "application/json", append(x.form.ErrorBody(x.Status, unit, string(message)), '\n')
	} else {
		body = make([]byte, 0, len(escaped)+len(x.DocumentationURL)+40)
		body = append(append(append(body, `{"message":"`...), escaped...), '"')
		if x.DocumentationURL != "" {
			body = append(append(append(body, `,"documentation_url":"`...), escape(x.DocumentationURL)...), '"')
		}
		body = append(body, "}\n"...)
	}
	h := w.Header()
	h["Content-Type"] = []string{contentType}
	// net/http sets the length of so short a body, and the map of the header grows after eight
	// fields.
	delete(h, "Content-Length")
	if r.Method == http.MethodHead {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(x.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have left
	}
}

// refused returns the limit that refused, and false if the body must not depend on it.
func (x *Refusal) refused() (s decision.Status, ok bool) {
	if x.Err == nil && !x.silent {
		s, ok = x.Decision.Reported()
	}
	return s, ok && s.Refused
}

// appendProblem appends x in the form of RFC 9457.
func (x *Refusal) appendProblem(b, escaped []byte) []byte {
	kind, title := "about:blank", http.StatusText(x.Status)
	switch {
	case x.Err == nil:
		kind, title = "https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota exceeded"
	case !errors.Is(x.Err, throttler.ErrInvalid):
		kind, title = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", "Temporarily reduced capacity"
	}
	b = append(append(append(b, `{"type":"`...), kind...), `","title":"`...)
	b = strconv.AppendInt(append(append(b, title...), `","status":`...), int64(x.Status), 10)
	b = append(append(append(b, `,"detail":"`...), escaped...), '"')
	if _, ok := x.refused(); ok {
		b = append(appendViolated(append(b, `,"violated-policies":[`...), &x.Decision), ']')
	}
	return append(b, "}\n"...)
}

// escape returns text as it is in a JSON string.
func escape(text string) []byte {
	escaped, _ := json.Marshal(text) // a string has no error
	return escaped[1 : len(escaped)-1]
}

// appendViolated appends the names of the policies that refused and are not Hidden, each once.
func appendViolated(b []byte, d *throttler.Decision) []byte {
	last := ""
	for _, s := range d.Limits() {
		if !s.Refused || s.Policy.Hidden || s.Policy.Name == last {
			continue
		}
		if last != "" {
			b = append(b, ',')
		}
		last = s.Policy.Name
		b = append(append(append(b, '"'), last...), '"')
	}
	return b
}

// maxAccept is the longest Accept that is read, in bytes: a refusal must stay cheap.
const maxAccept = 1 << 10

// prefersProblem reports whether Accept includes application/problem+json, and does not prefer
// application/json. It does not read an Accept above maxAccept.
func prefersProblem(accept []string) bool {
	length := 0
	for _, line := range accept {
		if length += len(line) + 1; length > maxAccept {
			return false
		}
	}
	joined := strings.Join(accept, ",")
	if !strings.Contains(strings.ToLower(joined), "application/problem+json") {
		return false // most, at a glance
	}
	weights := map[string]float64{}
	for part := range strings.SplitSeq(joined, ",") {
		mediaType, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		weights[mediaType] = 1
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			weights[mediaType] = q
		}
	}
	q := weights["application/problem+json"]
	return q > 0 && q >= weights["application/json"]
}
