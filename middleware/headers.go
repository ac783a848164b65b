package middleware

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// The headers' names in Go's canonical case; on the wire case does not matter.
const (
	headerLimit     = "X-Ratelimit-Limit"
	headerRemaining = "X-Ratelimit-Remaining"
	headerUsed      = "X-Ratelimit-Used"
	headerReset     = "X-Ratelimit-Reset"
	headerResource  = "X-Ratelimit-Resource"
	headerPolicies  = "Ratelimit-Policy"
	headerLimits    = "Ratelimit"
	exposed         = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Used, X-RateLimit-Reset, X-RateLimit-Resource, Retry-After, RateLimit-Policy, RateLimit"
)

// removeHeaders removes what the handler, or a server behind it, has set under
// these names, in any spelling, and withdraws such trailers.
func removeHeaders(h http.Header) {
	if _, ok := h["Content-Type"]; len(h) == 0 || ok && len(h) == 1 {
		return // as often: to range over a map takes some time to begin
	}
	announced := false
	for name := range h {
		if isRateHeader(strings.TrimPrefix(name, http.TrailerPrefix)) {
			delete(h, name)
		}
		announced = announced || name == "Trailer"
	}
	if announced {
		withdrawTrailers(h, isRateHeader)
	}
}

// removeLateTrailers removes trailers that were not announced, and were set since
// the response began with so many fields in h. Few handlers set any.
func removeLateTrailers(h http.Header, fields int) {
	if len(h) == fields {
		return
	}
	for key := range h {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok && isRateHeader(name) {
			delete(h, key)
		}
	}
}

func isRateHeader(name string) bool {
	if len(name) < len(headerLimits) || name[0]|0x20 != 'x' && name[0]|0x20 != 'r' {
		return false // most, at a glance
	}
	for _, ours := range [...]string{headerLimit, headerRemaining, headerUsed, headerReset, headerResource, headerPolicies, headerLimits} {
		if strings.EqualFold(name, ours) {
			return true
		}
	}
	return false
}

// withdrawTrailers removes names from the trailers that h announces: net/http
// sends no others.
func withdrawTrailers(h http.Header, remove func(name string) bool) {
	announced := h["Trailer"]
	if len(announced) == 0 {
		return
	}
	var kept []string
	for name := range strings.SplitSeq(strings.Join(announced, ","), ",") {
		if name = strings.TrimSpace(name); name != "" && !remove(name) {
			kept = append(kept, name)
		}
	}
	if kept == nil {
		delete(h, "Trailer")
		return
	}
	h["Trailer"] = []string{strings.Join(kept, ", ")}
}

// writeHeaders makes h report what is left of all that is enforced: in the
// headers the limit that binds, in the fields all of them. Of several entries
// of one middleware, the last one counts. If something is enforced but undecided, or
// decided without the shared counts, or because a key is blocked, there are none: any would
// be a lie.
func (l *ledger) writeHeaders(h http.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var some [4]*entry
	enforced := some[:0]
	unknown, fields, expose := false, false, false
	for e := l.last.Load(); e != nil; e = e.earlier {
		if e.m.DryRun != nil || len(e.asked()) == 0 || slices.ContainsFunc(enforced, func(o *entry) bool { return o.m == e.m }) {
			continue
		}
		enforced = append(enforced, e)
		unknown = unknown || e.d.NumLimits() == 0 || e.d.Degraded || e.d.Blocked
		fields = fields || e.m.RateLimitFields
		expose = expose || e.m.ExposeHeaders
	}
	if len(enforced) == 0 {
		return // dry runs leave the headers alone
	}
	removeHeaders(h)
	l.enforced = true
	if unknown {
		return
	}
	var few [4]*throttler.Decision
	decisions := few[:0]
	for _, e := range slices.Backward(enforced) {
		decisions = append(decisions, e.d)
	}
	l.values.write(h, enforced[0].m.capacity, decisions...)
	if fields {
		writeFields(h, decisions)
	}
	if expose && !slices.Contains(h["Access-Control-Expose-Headers"], exposed) {
		h.Add("Access-Control-Expose-Headers", exposed)
	}
}

// clearHeaders removes what is not l's from h, the header of a 1xx response, if anything
// is enforced.
func (l *ledger) clearHeaders(h http.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.last.Load(); e != nil; e = e.earlier {
		if e.m.DryRun == nil && len(e.asked()) > 0 {
			removeHeaders(h)
			return
		}
	}
}

// numeral is a number and its decimal digits.
type numeral struct {
	n    int64
	text string
}

// headerValues is the room of the headers' values.
type headerValues struct{ all [5]string }

// write writes the headers of decisions, and nothing else. All numbers share one
// string, but for the capacity, which is likely the known one: this runs on every
// response.
func (v *headerValues) write(h http.Header, known numeral, decisions ...*throttler.Decision) {
	s := binding(decisions...)
	capacity, resetAt := s.limit.Capacity(), s.result.ResetAt
	if s.result.Used >= capacity { // as in Status.Reset
		resetAt = s.result.Next(s.limit)
	}
	var buf [96]byte
	b := strconv.AppendInt(buf[:0], max(capacity-s.result.Used, 0), 10)
	remaining := len(b)
	b = strconv.AppendInt(b, s.result.Used, 10)
	used := len(b)
	b = strconv.AppendInt(b, epochSeconds(resetAt), 10)
	reset := len(b)
	if known.n != capacity {
		b = strconv.AppendInt(b, capacity, 10)
	}
	numbers := string(b)
	if known.n != capacity {
		known.text = numbers[reset:]
	}
	if v.all[0] != "" { // a header that was written before may be on its way
		v = new(headerValues)
	}
	values := &v.all
	*values = [...]string{known.text, numbers[:remaining], numbers[remaining:used], numbers[used:reset], s.charge.Policy.Name}
	h[headerLimit] = values[0:1:1]
	h[headerRemaining] = values[1:2:2]
	h[headerUsed] = values[2:3:3]
	h[headerReset] = values[3:4:4]
	h[headerResource] = values[4:5:5]
}

// limitView is where a decision speaks of one limit. A decision.Status says the same
// in copies and times of day, which every response would pay for.
type limitView struct {
	charge *throttler.Charge
	limit  *throttler.Limit
	result *driver.Result
}

// binding returns the limit that binds among all decisions.
func binding(decisions ...*throttler.Decision) limitView {
	of, at := decisions[0], 0
	if len(decisions) > 1 || of.NumLimits() > 1 {
		var binding decision.Status
		for _, d := range decisions {
			for i, s := range d.Limits() {
				if binding.Policy == nil || s.BindsBefore(&binding) {
					of, at, binding = d, i, s
				}
			}
		}
	}
	return limitViewAt(of, at)
}

// limitViewAt returns limit i of d, in the order of d.Limits.
func limitViewAt(d *throttler.Decision, i int) limitView {
	result, charges := &d.Driver().Results()[i], d.Charges()
	for i >= len(charges[0].Policy.Limits) {
		i -= len(charges[0].Policy.Limits)
		charges = charges[1:]
	}
	return limitView{&charges[0], &charges[0].Policy.Limits[i], result}
}

// epochSeconds returns ms in whole seconds, rounded up: at that second, the window is
// over.
func epochSeconds(ms int64) int64 { return ceilDiv(ms, 1000) }

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return ceilDiv(d.Milliseconds(), 1000) }

func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}

// isToken reports whether name can be a header's name, or is empty.
func isToken(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}
