package middleware

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/throttler/decision"
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

// removeFields removes the fields that a handler, or a server behind it, has set under
// names that is reports, in any spelling, and withdraws such trailers: net/http sends no
// others than those that are announced.
func removeFields(h http.Header, is func(name string) bool) {
	for name := range h {
		if is(strings.TrimPrefix(name, http.TrailerPrefix)) {
			delete(h, name)
		}
	}
	announced := h["Trailer"]
	if len(announced) == 0 {
		return
	}
	var kept []string
	for name := range strings.SplitSeq(strings.Join(announced, ","), ",") {
		if name = strings.TrimSpace(name); name != "" && !is(name) {
			kept = append(kept, name)
		}
	}
	if kept == nil {
		delete(h, "Trailer")
		return
	}
	h["Trailer"] = []string{strings.Join(kept, ", ")}
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

// writeHeaders makes h report what is left of all that is enforced: in the
// headers the limit that binds, in the fields all of them. Of several entries
// of one middleware, the last one counts. If something is enforced but undecided, or
// decided without the shared counts, or because a key is blocked, there are none: any would
// be a lie.
func (l *ledger) writeHeaders(h http.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var room [4]*entry
	enforced := room[:0]
	unknown, fields, expose := false, false, false
	for e := l.last.Load(); e != nil; e = e.earlier {
		if e.m.DryRun != nil || len(e.charges) == 0 || slices.ContainsFunc(enforced, func(o *entry) bool { return o.m == e.m }) {
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
	if _, ok := h["Content-Type"]; !ok || len(h) > 1 { // or none is ours: to range over h takes some time to begin
		removeFields(h, isRateHeader)
	}
	l.enforced = true
	if unknown {
		return
	}
	slices.Reverse(enforced) // the outermost first
	binding := enforced[0].d.Binding()
	for _, e := range enforced[1:] {
		if s := e.d.Binding(); s.BindsBefore(&binding) {
			binding = s
		}
	}
	values := &l.values
	if values[0] != "" { // a header that was written before may be on its way
		values = new([5]string)
	}
	writeLimit(h, &binding, values)
	if fields {
		writeFields(h, enforced)
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
		if e.m.DryRun == nil && len(e.charges) > 0 {
			removeFields(h, isRateHeader)
			return
		}
	}
}

// writeLimit writes the headers about s. Their values are in room, and all numbers in one
// string: this runs on every response.
func writeLimit(h http.Header, s *decision.Status, room *[5]string) {
	var digits [96]byte
	b := strconv.AppendInt(digits[:0], s.Limit.Capacity(), 10)
	limit := len(b)
	b = strconv.AppendInt(b, s.Remaining, 10)
	remaining := len(b)
	b = strconv.AppendInt(b, s.Used, 10)
	used := len(b)
	b = strconv.AppendInt(b, epochSeconds(s.Reset().UnixMilli()), 10)
	all := string(b)
	*room = [...]string{all[:limit], all[limit:remaining], all[remaining:used], all[used:], s.Policy.Name}
	for i, name := range [...]string{headerLimit, headerRemaining, headerUsed, headerReset, headerResource} {
		h[name] = room[i : i+1 : i+1]
	}
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
