package transport

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// statusOverloaded is a 503 of the APIs of Anthropic and Notion.
const statusOverloaded = 529

// pauseOf returns the pause that a response received at now asks for, or 0. A time that can't
// be read, or is not after the response was sent, does not ask.
func pauseOf(response *http.Response, now time.Time, backoff time.Duration) time.Duration {
	h := response.Header
	sent := now // by the server's clock, which may be off
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		sent = date
	}
	tooMany := response.StatusCode == http.StatusTooManyRequests
	switch response.StatusCode {
	case http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable, statusOverloaded:
		if pause := longest(h["Retry-After-Ms"], sent, time.Millisecond); pause > 0 {
			return pause
		}
		if pause := longest(h["Retry-After"], sent, time.Second); pause > 0 {
			return pause
		}
	default:
		if age := h.Get("Age"); age != "" && age != "0" || h.Get("X-From-Cache") != "" {
			return 0 // it answered another request, some time ago
		}
	}
	pause := draftPause(h["Ratelimit"])
	for name, values := range h {
		before, after, ok := strings.Cut(name, "Reset")
		if !ok || !strings.Contains(name, "Ratelimit") && !strings.Contains(name, "Rate-Limit") {
			continue
		}
		remaining, counted := h[before+"Remaining"+strings.TrimSuffix(after, "-After")]
		if exhausted(remaining) || tooMany && !counted {
			pause = max(pause, longest(values, sent, time.Second))
		}
	}
	if pause == 0 && (tooMany || response.StatusCode == http.StatusForbidden && exhausted(h["X-Ratelimit-Remaining"])) {
		return backoff
	}
	return pause
}

// exhausted reports whether one of the values is 0 or less, as in "0" or "0;w=60".
func exhausted(remaining []string) bool {
	for _, value := range remaining {
		value, _, _ = strings.Cut(value, ";")
		if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && n <= 0 {
			return true
		}
	}
	return false
}

// longest returns the longest of several waits from sent, or 0 if there is none. A value may
// be a list, as if there were several headers.
func longest(values []string, sent time.Time, unit time.Duration) (d time.Duration) {
	for _, value := range values {
		if pause := wait(value, sent, unit); pause > 0 {
			d = max(d, pause)
			continue
		}
		for part := range strings.SplitSeq(value, ",") {
			d = max(d, wait(part, sent, unit))
		}
	}
	return d
}

// wait returns the wait that text describes: a number, a duration of Go's, or a date. It is 0
// or less if text can't be read or the time has passed.
func wait(text string, sent time.Time, unit time.Duration) time.Duration {
	text = strings.TrimSpace(text)
	if text != "" && strings.Trim(text, "0123456789.") == "" {
		n, _ := strconv.ParseFloat(text, 64) // 0 if it has two points, +Inf if it is huge
		return waitOf(n*unit.Seconds(), sent)
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	if date, err := http.ParseTime(text); err == nil {
		return date.Sub(sent)
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if date, err := time.Parse(layout, text); err == nil {
			return date.Sub(sent)
		}
	}
	return 0
}

// waitOf returns the wait that a number of seconds is or, from 10^9 on, the wait until that
// Unix time: in seconds, or from 10^11 on, in milliseconds, microseconds or nanoseconds.
func waitOf(n float64, sent time.Time) time.Duration {
	const epoch, nextUnit, greatest = 1e9, 1e11, 1e9 // in 2001, in 5138, and 31 years
	if n >= epoch {
		for range 3 {
			if n >= nextUnit {
				n /= 1000
			}
		}
		n -= float64(sent.UnixNano()) / 1e9
	}
	return time.Duration(min(n, greatest) * float64(time.Second))
}

// draftPause returns the longest t of the items with an r of 0 in the RateLimit of the IETF
// draft, such as "hour";r=0;t=30, or 0.
func draftPause(values []string) (d time.Duration) {
	text := []byte(strings.Join(values, ","))
	quoted, escaped := false, false
	for i, c := range text { // a name may contain anything
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		}
		if quoted {
			text[i] = '_'
		}
	}
	for item := range strings.SplitSeq(string(text), ",") {
		remaining, seconds := "", ""
		for parameter := range strings.SplitSeq(item, ";") {
			switch name, value, _ := strings.Cut(strings.TrimSpace(parameter), "="); name {
			case "r":
				remaining = value
			case "t":
				seconds = value
			}
		}
		if t, err := strconv.ParseUint(seconds, 10, 31); err == nil && remaining == "0" {
			d = max(d, time.Duration(t)*time.Second)
		}
	}
	return d
}
