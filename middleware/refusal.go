package middleware

import (
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
	if t.Refuse != nil {
		t.Refuse(w, k.received, *d)
		return
	}
	var detail [256]byte
	p := problem{
		kind:    "https://iana.org/assignments/http-problem-types#quota-exceeded",
		title:   "Quota exceeded",
		refused: d,
	}
	if t.silent() {
		p.refused, p.detail = nil, appendWait(append(detail[:0], refusalText...), wait)
	} else {
		p.detail = appendRefusal(detail[:0], d, wait)
	}
	status := t.RefusalStatus
	if d.Blocked {
		status = t.BlockedStatus
	}
	t.writeProblem(w, k.received, status, p)
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
	more := time.Duration(float64(d) * part)
	return max(seconds(d+more), 1)
}

// answerUnavailable answers 503 in place of the handler. If k has a decision, its charge has
// been refunded. The detail is for the client, and for Options.Unavailable if err is nil.
func (t *throttle) answerUnavailable(w http.ResponseWriter, k *take, detail string, err error) {
	k.answerInPlace(w, "1")
	if t.Unavailable != nil {
		if err == nil {
			err = errors.New("middleware: " + detail)
		}
		t.Unavailable(w, k.received, err)
		return
	}
	t.writeProblem(w, k.received, http.StatusServiceUnavailable, problem{
		kind:   "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
		title:  "Temporarily reduced capacity",
		detail: []byte(detail),
	})
}

// answerInvalid answers 500: the server's policies or costs are wrong.
func (t *throttle) answerInvalid(w http.ResponseWriter, k *take) {
	k.answerInPlace(w, "")
	t.writeProblem(w, k.received, http.StatusInternalServerError, problem{
		kind:   "about:blank",
		title:  http.StatusText(http.StatusInternalServerError),
		detail: []byte("The rate limit of this request is not configured correctly."),
	})
}

// answerInPlace accounts for a request that does not reach its handler. The outer entries are
// refunded when the response begins, and only if it does: a handler in between may send
// another one. If retryAfter is "", Retry-After is not set.
func (k *take) answerInPlace(w http.ResponseWriter, retryAfter string) {
	k.state = refused
	if k == &k.link.take {
		k.link.handler = ended // it does not run
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

// appendRefusal appends the limit that refused and when to retry: in wait seconds, or never if
// wait is 0. The text begins as GitHub's does and must not mention a secondary rate limit:
// clients look for those words.
func appendRefusal(b []byte, d *throttler.Decision, wait int64) []byte {
	s := d.Binding()
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
		if most := s.Limit.Capacity(); most != s.Limit.Quota {
			b = append(strconv.AppendInt(append(b, ", and "...), most, 10), " at once"...)
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

// problem is the body of a response that the middleware makes. Its texts need no escapes in
// JSON: they are texts of this package and names of policies, which contain no characters to
// escape.
type problem struct {
	kind    string // a URI, the "type" of RFC 9457
	title   string
	detail  []byte
	refused *throttler.Decision // the refusal, to name the violated policies; may be nil
}

func (t *throttle) writeProblem(w http.ResponseWriter, r *http.Request, status int, p problem) {
	contentType, body := "application/json; charset=utf-8", []byte(nil)
	if prefersProblem(r.Header["Accept"]) {
		contentType, body = "application/problem+json", p.appendProblem(make([]byte, 0, 512), status)
	} else if own := t.errorBody(); own != nil {
		unit := quota.Requests
		if p.refused != nil {
			unit = p.refused.Binding().Policy.Unit
		}
		contentType, body = "application/json", append(own.ErrorBody(status, unit, string(p.detail)), '\n')
	} else {
		body = make([]byte, 0, len(p.detail)+len(t.documentation)+16)
		body = append(append(append(body, `{"message":"`...), p.detail...), '"')
		body = append(append(body, t.documentation...), "}\n"...)
	}
	h := w.Header()
	h["Content-Type"] = []string{contentType}
	// net/http sets the length of so short a body, and the map of the header grows after eight
	// fields.
	delete(h, "Content-Length")
	if r.Method == http.MethodHead {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have left
	}
}

// appendProblem appends p in the form of RFC 9457.
func (p *problem) appendProblem(b []byte, status int) []byte {
	b = append(append(append(b, `{"type":"`...), p.kind...), `","title":"`...)
	b = strconv.AppendInt(append(append(b, p.title...), `","status":`...), int64(status), 10)
	b = append(append(append(b, `,"detail":"`...), p.detail...), '"')
	if p.refused != nil {
		b = append(appendViolated(append(b, `,"violated-policies":[`...), p.refused), ']')
	}
	return append(b, "}\n"...)
}

// appendViolated appends the names of the policies that refused, each once.
func appendViolated(b []byte, d *throttler.Decision) []byte {
	last := ""
	for _, s := range d.Limits() {
		if !s.Refused || s.Policy.Name == last {
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
	all := strings.Join(accept, ",")
	if !strings.Contains(strings.ToLower(all), "application/problem+json") {
		return false // most, at a glance
	}
	asked := map[string]float64{}
	for part := range strings.SplitSeq(all, ",") {
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
