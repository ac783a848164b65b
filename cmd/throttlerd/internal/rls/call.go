package rls

import (
	"context"
	"slices"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// call is a request on its way to an answer.
type call struct {
	server    *Server
	throttler *throttler.Throttler // with the server's time
	loaded    *loaded
	req       *Request
	domain    *descriptors.Domain
	items     []item // one for each descriptor
	matched   bool   // an item has a rule or its own limit
	key       []byte // of the item that is being matched

	turn, turns int // see item.turn

	charged  []throttler.Decision
	degraded bool // a decision lacks counts of a store

	refused      bool
	retryAt      int64 // when all refusing limits have room, in ms since the epoch
	quotaRetryAt int64 // when the first limit in quota_mode that is over has room

	statuses []Status
	times    []durationpb.Duration
}

// item is a descriptor of the request, and how it is decided.
type item struct {
	kind     kind
	rule     *descriptors.Rule  // nil for an override
	limit    *descriptors.Limit // as the answer shows it; nil if there is none
	policy   *quota.Policy      // nil if there is no limit
	override *policies.Override // of the table, or nil
	changed  bool               // the limits of policy are the table's
	key      string
	cost     int64
	turn     int       // of a count that the request has named before: it is charged after the others
	report   bool      // the cost is charged if it fits or not
	counters *counters // nil if there is no limit
	exceeded bool
}

// isUnlimited reports whether the item is allowed without a limit.
func (item *item) isUnlimited() bool {
	if item.override != nil {
		return item.override.Unlimited
	}
	return item.rule != nil && item.rule.Unlimited && !item.changed
}

// kind says how a descriptor is decided.
type kind uint8

const (
	free       kind = iota // no limit, or unlimited, or replaced
	refusesAll             // 0 requests are allowed
	blocked                // an override blocks the key
	overBefore             // the local cache has it
	checks                 // 0 hits: over if more than the limit is used
	enforced               // charged if all enforced items fit
	reports                // charged in any case
	observed               // shadow_mode or quota_mode: charged if it alone fits
)

func newCall(s *Server, l *loaded, req *Request) *call {
	n := len(req.Descriptors)
	return &call{server: s, throttler: s.throttler, loaded: l, req: req, items: make([]item, n), statuses: make([]Status, n), times: make([]durationpb.Duration, n)}
}

// match finds the rule of each descriptor.
func (c *call) match() error {
	c.domain = c.loaded.set.Domain(c.req.Domain)
	if c.domain == nil {
		c.server.metrics.domainNotFound(c.req.Domain, len(c.req.Descriptors))
		return nil
	}
	replaces := false
	for i, d := range c.req.Descriptors {
		item := &c.items[i]
		if d.GetIsNegativeHits() && !c.server.answers.Compatible {
			return status.Errorf(codes.InvalidArgument, "descriptor %d has is_negative_hits; hits are only added", i)
		}
		cost := uint64(max(1, c.req.HitsAddend))
		if h := d.GetHitsAddend(); h != nil {
			cost, item.report = h.GetValue(), c.server.answers.OwnHitsReport
		}
		if cost > quota.MaxQuota {
			return status.Errorf(codes.InvalidArgument, "descriptor %d has %d hits; they must be at most %d (2^53)", i, cost, int64(quota.MaxQuota))
		}
		item.cost = int64(cost)
		if d.GetLimit() != nil {
			if err := c.override(item, i, d); err != nil {
				return err
			}
			continue
		}
		item.rule, c.key = c.domain.Match(c.key[:0], d.GetEntries())
		if item.rule == nil {
			continue
		}
		item.report = item.report || item.rule.Report
		item.limit, item.policy, item.key = item.rule.Limit, item.rule.Policy, string(c.key)
		replaces = replaces || len(item.rule.Replaces) > 0
	}
	if replaces {
		c.replace()
	}
	for i := range c.items {
		c.matched = c.matched || c.items[i].limit != nil
	}
	return nil
}

// resolve puts the items under the policies and overrides of the table, and classifies them. If
// their server hangs, it takes a third of the time: the rest is for the decision.
func (c *call) resolve(ctx context.Context) error {
	bounded := false
	view, now := c.server.table.View(), c.server.throttler.Clock().Now().UnixMilli()
	for i := range c.items {
		item := &c.items[i]
		if item.limit == nil {
			continue
		}
		if !bounded && view.Finds(item.policy.Name) {
			if end, ok := ctx.Deadline(); ok {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Until(end)/3)
				defer cancel()
			}
			bounded = true
		}
		p, found, _ := view.Resolve(ctx, item.policy, item.key, now)
		if found != nil && found.Err() != nil {
			return found.Err()
		}
		item.override, item.changed = found, p != item.policy
		if found == nil || !found.Blocked {
			item.policy = p
		}
		c.classify(i)
	}
	return nil
}

// replace drops the limits that other descriptors of the request replace by name.
func (c *call) replace() {
	var names []string
	for i := range c.items {
		if r := c.items[i].rule; r != nil {
			names = append(names, r.Replaces...)
		}
	}
	for i := range c.items {
		if r := c.items[i].rule; r != nil && r.Name != "" && !r.Unlimited && slices.Contains(names, r.Name) {
			c.items[i] = item{}
		}
	}
}

// classify sets the kind of item i.
func (c *call) classify(i int) {
	item := &c.items[i]
	r := item.rule
	if item.isUnlimited() && (item.override == nil || len(item.policy.Limits) == 0) {
		return
	}
	if compatible := c.server.metrics.names; compatible != nil {
		item.counters = compatible.countersOf(c.domain.Stat(r, c.req.Descriptors[i].GetEntries()))
	} else if r == nil {
		item.counters = c.server.metrics.dynamic(c.domain.OverrideLabels(c.req.Descriptors[i].GetEntries()), nil)
	} else if item.counters = c.loaded.counters[r.Index]; r.Valued() {
		item.counters = c.server.metrics.dynamic(c.domain.LabelsOf(r, c.req.Descriptors[i].GetEntries()), item.counters)
	}
	item.counters.total.Add(float64(item.cost))
	switch a := &c.server.answers; {
	case item.override != nil && item.override.Blocked:
		item.kind = blocked
	case item.limit.RequestsPerUnit == 0 && !item.changed && !a.Compatible:
		item.kind = refusesAll
	case item.cost == 0:
		item.kind = checks
	case a.CountRefused || item.report || c.isQuota(item) && c.req.Descriptors[i].GetHitsAddend() != nil:
		item.kind = reports
	case c.isObserved(item):
		item.kind = observed
	default:
		item.kind = enforced
	}
}

// isQuota reports whether an item refuses only together with all others in quota_mode.
func (c *call) isQuota(item *item) bool {
	return item.kind != blocked && (c.server.answers.QuotaMode || item.rule != nil && item.rule.Quota)
}

// isShadow reports whether an item never refuses.
func (c *call) isShadow(item *item) bool {
	return item.kind != blocked && item.rule != nil && item.rule.Shadow
}

func (c *call) isObserved(item *item) bool { return c.isQuota(item) || c.isShadow(item) }

// override sets the item of a descriptor that brings its own limit.
func (c *call) override(item *item, i int, d *commonv3.RateLimitDescriptor) error {
	l := d.GetLimit()
	unit := descriptors.Unit(l.GetUnit()) // the two enumerations have the same numbers
	window := descriptors.Window(unit)
	if window == 0 {
		return status.Errorf(codes.InvalidArgument, "descriptor %d has a limit whose unit is %v; it must be %v, %v, %v, %v, %v or %v", i, l.GetUnit(),
			typev3.RateLimitUnit_SECOND, typev3.RateLimitUnit_MINUTE, typev3.RateLimitUnit_HOUR, typev3.RateLimitUnit_DAY, typev3.RateLimitUnit_MONTH, typev3.RateLimitUnit_YEAR)
	}
	multiplier := l.GetUnitMultiplier()
	if c.server.answers.Compatible {
		multiplier = nil
	}
	n := max(1, multiplier.GetValue())
	if n > 1 {
		if int64(n) > int64(quota.MaxWindow/window) {
			return status.Errorf(codes.InvalidArgument, "descriptor %d has a limit of %d times a %v; a window must be at most %v", i, n, l.GetUnit(), quota.MaxWindow)
		}
		window *= time.Duration(n)
	}
	rule, _ := c.domain.Match(c.key[:0], d.GetEntries())
	if rule != nil {
		item.report = item.report || rule.Report
	}
	item.limit = &descriptors.Limit{RequestsPerUnit: l.GetRequestsPerUnit(), Unit: unit, UnitMultiplier: multiplier}
	c.key = c.domain.Key(c.key[:0], d.GetEntries())
	item.key = string(c.key)
	item.policy = &quota.Policy{Name: descriptors.OverrideName(unit, n), Limits: []quota.Limit{{Quota: max(1, int64(l.GetRequestsPerUnit())), Window: window, Aligned: true}}}
	if c.server.answers.Compatible && rule != nil && rule.SharesCount(&item.policy.Limits[0]) {
		item.policy.Name = rule.Policy.Name
	}
	return nil
}
