package transport

import (
	"net/http"
	"strconv"
	"time"
)

// pauseOf returns the pause that a response received at now asks for, or 0.
func pauseOf(response *http.Response, now time.Time) time.Duration {
	pause := time.Duration(0)
	h := response.Header
	switch response.StatusCode {
	case http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		pause = retryAfter(h, now)
	}
	if h.Get("X-RateLimit-Remaining") == "0" {
		if seconds, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64); err == nil {
			pause = max(pause, untilReset(h, seconds, now))
		}
	}
	return pause
}

func retryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		return duration(seconds)
	}
	if at, err := http.ParseTime(value); err == nil {
		return at.Sub(sent(h, now))
	}
	return 0
}

// untilReset returns the time until a reset. seconds is a Unix time, as GitHub sends, or the
// seconds until the reset, as others send.
func untilReset(h http.Header, seconds int64, now time.Time) time.Duration {
	const epoch = 1_000_000_000 // in 2001 as a time, 31 years as a wait
	if seconds < epoch {
		return duration(seconds)
	}
	return time.Unix(min(seconds, 1<<40), 0).Sub(sent(h, now))
}

func duration(seconds int64) time.Duration {
	const most = 1 << 32
	return time.Duration(min(max(seconds, 0), most)) * time.Second
}

// sent returns when the response was sent, by the server's clock, or now if it does not say.
func sent(h http.Header, now time.Time) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return now
}
