package rls

import (
	"math"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/throttler/decision"
)

// untilReset returns the seconds until a limit's reset, rounded up. For an aligned window it
// is at least the time until the window's end, also if nothing was charged yet.
func untilReset(s *decision.Status, now int64) int64 {
	ms := s.ResetAt.UnixMilli() - now
	if s.Limit.Aligned {
		window := s.Limit.Window.Milliseconds()
		ms = max(ms, window-now%window)
	}
	return (max(ms, 0) + 999) / 1000
}

// untilUnit returns the milliseconds at now until the unit of a limit ends: then a file may have
// another limit.
func untilUnit(l *descriptors.Limit, now int64) int64 {
	window := descriptors.Window(l.Unit).Milliseconds() * int64(max(1, l.UnitMultiplier.GetValue()))
	return window - now%window
}

// status writes the status of item i, which has a limit.
func (c *call) status(i int, remaining, resetSeconds int64) {
	item, st := &c.items[i], &c.statuses[i]
	if item.isUnlimited() || item.rule != nil && item.rule.Hidden {
		return
	}
	st.CurrentLimit = item.limit
	st.LimitRemaining = uint32(min(max(remaining, 0), math.MaxUint32))
	if item.kind == blocked && resetSeconds == 0 {
		return
	}
	if c.server.answers.Compatible && item.exceeded {
		st.LimitRemaining = 0
	}
	c.times[i].Seconds = resetSeconds
	st.DurationUntilReset = &c.times[i]
}

// response returns the answer.
func (c *call) response() *Response {
	a := &c.server.answers
	resp := &Response{OverallCode: ok, Statuses: make([]*Status, len(c.items))}
	for i := range c.items {
		item, st := &c.items[i], &c.statuses[i]
		st.Code = ok
		switch {
		case item.isUnlimited():
			st.LimitRemaining = math.MaxUint32
		case item.exceeded && !c.isShadow(item):
			st.Code = overLimit
		}
		resp.Statuses[i] = st
	}
	if c.refused {
		resp.OverallCode = overLimit
		if a.ShadowMode {
			resp.OverallCode = ok
			c.server.metrics.globalShadow.Inc()
		}
	}
	if a.Headers {
		resp.ResponseHeadersToAdd = c.limitHeaders(resp.ResponseHeadersToAdd)
	}
	if a.RetryAfter && resp.OverallCode == overLimit {
		resp.ResponseHeadersToAdd = c.retryAfter(resp.ResponseHeadersToAdd)
	}
	if a.DynamicMetadata {
		resp.DynamicMetadata = c.metadata()
	}
	return resp
}

// all returns an answer with one code for all descriptors, without counts.
func (c *call) list(code ratelimitv3.RateLimitResponse_Code) *Response {
	resp := &Response{OverallCode: code, Statuses: make([]*Status, len(c.items))}
	for i := range c.items {
		resp.Statuses[i] = &Status{Code: ok}
		if item := &c.items[i]; item.limit != nil && !item.isUnlimited() {
			resp.Statuses[i].Code = code
		}
	}
	if c.server.answers.RetryAfter && code == overLimit {
		resp.ResponseHeadersToAdd = []*corev3.HeaderValue{{Key: "Retry-After", Value: "1"}}
	}
	return resp
}

// nearest returns the status that the headers are about, to be compatible: the last over a limit
// that is not in quota_mode, or the first with the least remaining.
func (c *call) nearest() (best *Status) {
	least := uint32(math.MaxUint32)
	for i := range c.items {
		st := &c.statuses[i]
		if st.CurrentLimit != nil && st.LimitRemaining < least {
			best, least = st, st.LimitRemaining
		}
		if st.Code == overLimit && st.CurrentLimit != nil && !c.isQuota(&c.items[i]) {
			best, least = st, 0
		}
	}
	return best
}

// limitHeaders adds the headers of the descriptor that binds: the refusing one that resets
// last; otherwise the one with the least remaining, also in shadow_mode, or if all that refuse are
// hidden.
func (c *call) limitHeaders(to []*corev3.HeaderValue) []*corev3.HeaderValue {
	var best *Status
	if c.server.answers.Compatible {
		best = c.nearest()
	}
	refused := false
	for i := range c.items {
		st := &c.statuses[i]
		refused = refused || c.refused && st.CurrentLimit != nil && st.Code == overLimit
	}
	for i := range c.items {
		st := &c.statuses[i]
		switch {
		case st.CurrentLimit == nil || refused && st.Code != overLimit:
		case c.server.answers.Compatible:
		case best == nil,
			refused && st.DurationUntilReset.GetSeconds() > best.DurationUntilReset.GetSeconds(),
			!refused && st.LimitRemaining < best.LimitRemaining:
			best = st
		}
	}
	if best == nil {
		return to
	}
	a := &c.server.answers
	return append(to,
		&corev3.HeaderValue{Key: a.LimitHeader, Value: strconv.FormatUint(uint64(best.CurrentLimit.RequestsPerUnit), 10)},
		&corev3.HeaderValue{Key: a.RemainingHeader, Value: strconv.FormatUint(uint64(best.LimitRemaining), 10)},
		&corev3.HeaderValue{Key: a.ResetHeader, Value: strconv.FormatInt(best.DurationUntilReset.GetSeconds(), 10)})
}

// retryAfter adds a header with the time until the same request would fit: in whole seconds,
// at least 1. If that is never, or unknown, it adds nothing.
func (c *call) retryAfter(to []*corev3.HeaderValue) []*corev3.HeaderValue {
	if c.retryAt == unknown || c.retryAt == forever {
		return to
	}
	seconds := (c.retryAt - c.server.throttler.Clock().Now().UnixMilli() + 999) / 1000
	return append(to, &corev3.HeaderValue{Key: "Retry-After", Value: strconv.FormatInt(max(seconds, 1), 10)})
}
