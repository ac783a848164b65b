package middleware

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// removeFields removes from h the fields that a handler, or a server behind it, has set under
// names that satisfy matches, in any spelling. It also withdraws such names from Trailer: net/http
// sends only trailers that are announced.
func removeFields(h http.Header, matches func(name string) bool) {
	for name := range h {
		if matches(strings.TrimPrefix(name, http.TrailerPrefix)) {
			delete(h, name)
		}
	}
	announced := h["Trailer"]
	if len(announced) == 0 {
		return
	}
	var lines []string
	for name := range strings.SplitSeq(strings.Join(announced, ","), ",") {
		if name = strings.TrimSpace(name); name != "" && !matches(name) {
			lines = append(lines, name)
		}
	}
	if lines == nil {
		delete(h, "Trailer")
		return
	}
	h["Trailer"] = []string{strings.Join(lines, ", ")}
}

// removeLateTrailers removes rate headers from the unannounced trailers that were set since
// the response began. It compares the number of fields first: few handlers set trailers.
func (c *chain) removeLateTrailers(h http.Header) {
	if uint16(len(h)) == c.fields {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range h {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok && c.enforced && c.isRateHeader(name) {
			delete(h, key)
		}
	}
}

// isRateHeader reports whether name is a rate header of GitHub or the IETF. Handlers can't set
// these, whatever the dialect: most clients would believe them.
func isRateHeader(name string) bool {
	if len(name) < len(headerLimits) || name[0]|0x20 != 'x' && name[0]|0x20 != 'r' {
		return false // most, at a glance
	}
	for _, header := range [...]string{headerLimit, headerRemaining, headerUsed, headerReset, headerResource, headerPolicies, headerLimits} {
		if strings.EqualFold(name, header) {
			return true
		}
	}
	return false
}

// isRateHeader reports whether name is a rate header in the dialects of the middlewares that
// enforce something. Handlers can't set it. The caller holds the chain's lock.
func (c *chain) isRateHeader(name string) bool {
	if isRateHeader(name) {
		return true
	}
	for e := c.first.innermost(); e != nil; e = e.outer {
		if len(e.m.otherNames) > 0 && e.m.DryRun == nil && e.m.isRateHeader(name) {
			return true
		}
	}
	return false
}

// writeHeaders writes the rate headers of all enforced decisions to h, in the dialects of all
// middlewares. It writes no headers if an enforced decision is missing, was made without the
// shared counts, or blocks a key: the counts are unknown.
func (c *chain) writeHeaders(h http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var room [4]*take
	enforced, unknown := c.appendEnforced(room[:0])
	if len(enforced) == 0 {
		return // dry runs leave the headers alone
	}
	if _, ok := h["Content-Type"]; !ok || len(h) > 1 { // a lone Content-Type is not ours, and ranging over h takes some time to begin
		removeFields(h, c.isRateHeader)
	}
	c.enforced = true
	if unknown {
		return
	}
	rates := &c.rates
	if rates.values[0] != "" { // the values that were written before may be in use
		rates = new(Report)
	}
	rates.reset(enforced)
	rates.write(h)
	for _, k := range enforced {
		if m := k.link.m; m.ExposeHeaders && !slices.Contains(h["Access-Control-Expose-Headers"], m.exposed) {
			h.Add("Access-Control-Expose-Headers", m.exposed)
		}
	}
}

// appendEnforced appends the takes with enforced decisions to enforced, the outermost first.
// unknown reports whether the counts of one are unknown.
func (c *chain) appendEnforced(enforced []*take) (_ []*take, unknown bool) {
	for e := &c.first; e != nil; e = e.inner {
		if e.m.DryRun != nil {
			continue
		}
		if len(e.charges) > 0 {
			enforced = append(enforced, &e.take)
			unknown = unknown || e.isUnknown()
		}
		if e.takes == nil {
			continue
		}
		first := len(enforced)
		for k := e.takes; k != nil; k = k.next {
			if len(k.charges) > 0 {
				enforced = append(enforced, k)
				unknown = unknown || k.isUnknown()
			}
		}
		slices.Reverse(enforced[first:])
	}
	return enforced, unknown
}

// isUnknown reports whether headers can't report the counts of k.
func (k *take) isUnknown() bool {
	return (k.d.Degraded || k.d.Blocked || k.d.NumLimits() == 0) && !k.link.m.silent()
}

// clearHeaders removes the handler's rate headers from h, the header of a 1xx response, if
// anything is enforced.
func (c *chain) clearHeaders(h http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var room [4]*take
	if enforced, _ := c.appendEnforced(room[:0]); len(enforced) > 0 {
		removeFields(h, c.isRateHeader)
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
