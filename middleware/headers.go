package middleware

import (
	"net/http"
	"slices"
	"strings"
	"time"
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

// removeLateTrailers removes rate headers among trailers that were not announced, and were
// set since the response began with so many fields in h. Few handlers set any.
func (l *ledger) removeLateTrailers(h http.Header) {
	if uint16(len(h)) == l.fields {
		return
	}
	for key := range h {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok && l.isRateHeader(name) {
			delete(h, key)
		}
	}
}

// isRateHeader reports whether name is one of GitHub's or the IETF's, which are
// removed from what handlers set whatever the dialect: most clients would believe them.
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

// isRateHeader reports whether name is not to be a handler's, under the dialects of the
// middlewares that enforce something.
func (l *ledger) isRateHeader(name string) bool {
	if isRateHeader(name) {
		return true
	}
	for e := l.last.Load(); e != nil; e = e.earlier {
		if len(e.m.otherNames) > 0 && e.m.DryRun == nil && e.m.isRateHeader(name) {
			return true
		}
	}
	return false
}

// writeHeaders makes h report what is left of all that is enforced, in the dialects of
// all middlewares. If something is enforced but undecided, or decided without the
// shared counts, or because a key is blocked, there are none: any would be a lie.
func (l *ledger) writeHeaders(h http.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var room [4]*entry
	enforced, unknown := l.appendEnforced(room[:0])
	if len(enforced) == 0 {
		return // dry runs leave the headers alone
	}
	if _, ok := h["Content-Type"]; !ok || len(h) > 1 { // or none is ours: to range over h takes some time to begin
		removeFields(h, l.isRateHeader)
	}
	l.enforced = true
	if unknown {
		return
	}
	rates := &l.rates
	if rates.values[0] != "" { // a header that was written before may be on its way
		rates = new(Report)
	}
	rates.reset(enforced)
	rates.write(h)
	for _, e := range enforced {
		if e.m.ExposeHeaders && !slices.Contains(h["Access-Control-Expose-Headers"], e.m.exposed) {
			h.Add("Access-Control-Expose-Headers", e.m.exposed)
		}
	}
}

// appendEnforced appends the entries whose decisions are enforced to all, the outermost
// first. Of several entries of one middleware, the last one counts. It reports whether the
// headers cannot tell the truth.
func (l *ledger) appendEnforced(all []*entry) (_ []*entry, unknown bool) {
	for e := l.last.Load(); e != nil; e = e.earlier {
		if e.m.DryRun != nil || len(e.charges) == 0 || slices.ContainsFunc(all, func(o *entry) bool {
			return o.m == e.m && !o.inHandler && !e.inHandler
		}) {
			continue
		}
		all = append(all, e)
		unknown = unknown || !e.m.silent() && (e.d.NumLimits() == 0 || e.d.Degraded || e.d.Blocked)
	}
	slices.Reverse(all)
	return all, unknown
}

// clearHeaders removes what is not l's from h, the header of a 1xx response, if anything
// is enforced.
func (l *ledger) clearHeaders(h http.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.last.Load(); e != nil; e = e.earlier {
		if e.m.DryRun == nil && len(e.charges) > 0 {
			removeFields(h, l.isRateHeader)
			return
		}
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
