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

// isUnlimited reports whether it is allowed without a limit.
func (entry *item) isUnlimited() bool {
	if entry.override != nil {
		return entry.override.Unlimited
	}
	return entry.rule != nil && entry.rule.Unlimited && !entry.changed
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
		entry := &c.items[i]
		if d.GetIsNegativeHits() && !c.server.answers.Compatible {
			return status.Errorf(codes.InvalidArgument, "descriptor %d has is_negative_hits; hits are only added", i)
		}
		cost := uint64(max(1, c.req.HitsAddend))
		if h := d.GetHitsAddend(); h != nil {
			cost, entry.report = h.GetValue(), c.server.answers.OwnHitsReport
		}
		if cost > quota.MaxQuota {
			return status.Errorf(codes.InvalidArgument, "descriptor %d has %d hits; they must be at most %d (2^53)", i, cost, int64(quota.MaxQuota))
		}
		entry.cost = int64(cost)
		if d.GetLimit() != nil {
			if err := c.override(entry, i, d); err != nil {
				return err
			}
			continue
		}
		entry.rule, c.key = c.domain.Match(c.key[:0], d.GetEntries())
		if entry.rule == nil {
			continue
		}
		entry.report = entry.report || entry.rule.Report
		entry.limit, entry.policy, entry.key = entry.rule.Limit, entry.rule.Policy, string(c.key)
		replaces = replaces || len(entry.rule.Replaces) > 0
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
		entry := &c.items[i]
		if entry.limit == nil {
			continue
		}
		if !bounded && view.Finds(entry.policy.Name) {
			if end, ok := ctx.Deadline(); ok {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Until(end)/3)
				defer cancel()
			}
			bounded = true
		}
		p, found, _ := view.Resolve(ctx, entry.policy, entry.key, now)
		if found != nil && found.Err() != nil {
			return found.Err()
		}
		entry.override, entry.changed = found, p != entry.policy
		if found == nil || !found.Blocked {
			entry.policy = p
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
	entry := &c.items[i]
	r := entry.rule
	if entry.isUnlimited() && (entry.override == nil || len(entry.policy.Limits) == 0) {
		return
	}
	if compatible := c.server.metrics.names; compatible != nil {
		entry.counters = compatible.of(c.domain.Stat(r, c.req.Descriptors[i].GetEntries()))
	} else if r == nil {
		entry.counters = c.server.metrics.dynamic(c.domain.OverrideLabels(c.req.Descriptors[i].GetEntries()), nil)
	} else if entry.counters = c.loaded.counters[r.Index]; r.Valued() {
		entry.counters = c.server.metrics.dynamic(c.domain.LabelsOf(r, c.req.Descriptors[i].GetEntries()), entry.counters)
	}
	entry.counters.total.Add(float64(entry.cost))
	switch a := &c.server.answers; {
	case entry.override != nil && entry.override.Blocked:
		entry.kind = blocked
	case entry.limit.RequestsPerUnit == 0 && !entry.changed && !a.Compatible:
		entry.kind = refusesAll
	case entry.cost == 0:
		entry.kind = checks
	case a.CountRefused || entry.report || c.isQuota(entry) && c.req.Descriptors[i].GetHitsAddend() != nil:
		entry.kind = reports
	case c.isObserved(entry):
		entry.kind = observed
	default:
		entry.kind = enforced
	}
}

// isQuota reports whether it refuses only together with all other items in quota_mode.
func (c *call) isQuota(entry *item) bool {
	return entry.kind != blocked && (c.server.answers.QuotaMode || entry.rule != nil && entry.rule.Quota)
}

// isShadow reports whether it never refuses.
func (c *call) isShadow(entry *item) bool {
	return entry.kind != blocked && entry.rule != nil && entry.rule.Shadow
}

func (c *call) isObserved(entry *item) bool { return c.isQuota(entry) || c.isShadow(entry) }

// override makes it the item of a descriptor that brings its own limit.
func (c *call) override(entry *item, i int, d *commonv3.RateLimitDescriptor) error {
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
		entry.report = entry.report || rule.Report
	}
	entry.limit = &descriptors.Limit{RequestsPerUnit: l.GetRequestsPerUnit(), Unit: unit, UnitMultiplier: multiplier}
	c.key = c.domain.Key(c.key[:0], d.GetEntries())
	entry.key = string(c.key)
	entry.policy = &quota.Policy{Name: descriptors.OverrideName(unit, n), Limits: []quota.Limit{{Quota: max(1, int64(l.GetRequestsPerUnit())), Window: window, Aligned: true}}}
	if c.server.answers.Compatible && rule != nil && rule.SharesCount(&entry.policy.Limits[0]) {
		entry.policy.Name = rule.Policy.Name
	}
	return nil
}
