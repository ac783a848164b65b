package descriptors

import (
	"encoding/hex"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler/quota"
)

// Unit is the unit of a Limit. It has the numbers of envoyfile.Unit.
type Unit = ratelimitv3.RateLimitResponse_RateLimit_Unit

// Window returns the length of a unit, or 0 if u is not a unit.
func Window(u Unit) time.Duration { return unitOf(u).Window() }

// unitOf returns u, which may be any number in a message, or 0 if u is not a unit.
func unitOf[U ~int32](u U) envoyfile.Unit {
	if u < 0 || u > math.MaxUint8 || envoyfile.Unit(u).Window() == 0 {
		return 0
	}
	return envoyfile.Unit(u)
}

// Limit is a limit as answers show it.
type Limit = ratelimitv3.RateLimitResponse_RateLimit

// Rule is the limit of a descriptor, prepared for decisions. It is immutable.
type Rule struct {
	Index  int           // in Set.Rules
	Keys   []string      // of the descriptor's entries, with the '*' of patterns
	Path   string        // of the descriptor: domain.key_value.key; two rules may have the same, such as a_b of key a and of key a_b
	Labels Labels        // of its metrics
	Limit  *Limit        // as answers show it; shared by them
	Policy *quota.Policy // of its counts; under Unlimited, only for its name; under RefusesAll, one unit a window

	Name     string
	Replaces []string

	Unlimited  bool
	RefusesAll bool // requests_per_unit is 0
	Shadow     bool
	Quota      bool              // its mode is quota_mode
	Hidden     bool              // answers have no limit
	Report     bool              // a request's hits are charged if they fit or not
	Level      consistency.Level // of Policy

	Metadata *structpb.Struct // may be nil

	detailed bool
	leaf     bool // no descriptors are below it
	valued   bool // the labels depend on values of the request
}

// Labels name the counters of a rule in metrics.
type Labels struct{ Domain, Key1, Key2 string }

// Valued reports whether r's labels depend on values of the request: see LabelsOf.
func (r *Rule) Valued() bool { return r.valued }

// newRule returns the rule of d at path, with these keys and labels.
func newRule(d *envoyfile.Descriptor, path string, keys []string, labels Labels, valued bool) *Rule {
	l := d.RateLimit
	r := &Rule{
		Keys: keys, Path: path, Labels: labels, Name: l.Name, Unlimited: l.Unlimited,
		RefusesAll: !l.Unlimited && l.Requests() == 0,
		Shadow:     d.ShadowMode, Quota: d.QuotaMode, Report: l.Report, Hidden: l.Hidden, Level: l.Level, Metadata: metadataOf(d.Fields),
		detailed: d.DetailedMetric, leaf: len(d.Descriptors) == 0, valued: valued,
		Limit: &Limit{RequestsPerUnit: uint32(l.Requests()), Unit: Unit(l.Unit), Name: l.Name},
	}
	if n := l.Units(); n > 1 {
		r.Limit.UnitMultiplier = wrapperspb.UInt32(n)
	}
	for _, n := range l.Replaces {
		r.Replaces = append(r.Replaces, n.Name)
	}
	name := policyName(labels.Domain + "." + strings.Join(keys, "."))
	switch {
	case r.Unlimited:
		r.Policy = &quota.Policy{Name: name, Limits: []quota.Limit{{Quota: 1, Window: time.Second}}}
	case r.RefusesAll:
		one := envoyfile.Count(1)
		r.Policy = (&envoyfile.RateLimit{RequestsPerUnit: &one, Unit: l.Unit, UnitMultiplier: l.UnitMultiplier, Calendar: l.Calendar}).Policy(name)
	default:
		r.Policy = l.Policy(name)
	}
	return r
}

// SharesCount reports whether hits under a limit that a request brings can be counted with r's.
func (r *Rule) SharesCount(l *quota.Limit) bool {
	o := &r.Policy.Limits[0]
	return !r.Unlimited && r.Level == consistency.Exact && o.Aligned && o.Algorithm == l.Algorithm && o.Window == l.Window
}

// Counts reports whether r has a limit that counts hits.
func (r *Rule) Counts() bool { return !r.Unlimited && !r.RefusesAll }

func metadataOf(fields map[string]any) *structpb.Struct {
	if fields == nil {
		return nil
	}
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err) // the file was checked
	}
	return s
}

// policyName makes a policy's name from the domain and the keys of a descriptor. It has no
// values: the count of a client continues when a rule for its value comes or goes. Rules may have
// one name, because counts are named by their keys, too, which contain the whole descriptor.
func policyName(path string) string {
	clean := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.ContainsRune("._-/:", c):
			return c
		}
		return '_'
	}, path)
	if clean == path && len(path) <= quota.MaxNameBytes {
		return path
	}
	hash := fnv.New64a()
	hash.Write([]byte(path))
	sum := "-" + hex.EncodeToString(hash.Sum(nil))
	return clean[:min(len(clean), quota.MaxNameBytes-len(sum))] + sum
}

// LimitOf returns l as answers show it, under the name of a rule's limit.
func LimitOf(l *quota.Limit, name string) *Limit {
	shown := &Limit{RequestsPerUnit: uint32(min(l.Quota, math.MaxUint32)), Name: name}
	if !l.Calendar.IsZero() {
		shown.Unit = Unit(ratelimitv3.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(l.Calendar.Period.String())])
		return shown
	}
	for _, u := range []Unit{ratelimitv3.RateLimitResponse_RateLimit_YEAR, ratelimitv3.RateLimitResponse_RateLimit_MONTH, ratelimitv3.RateLimitResponse_RateLimit_WEEK, ratelimitv3.RateLimitResponse_RateLimit_DAY,
		ratelimitv3.RateLimitResponse_RateLimit_HOUR, ratelimitv3.RateLimitResponse_RateLimit_MINUTE, ratelimitv3.RateLimitResponse_RateLimit_SECOND} {
		if w := Window(u); l.Window%w == 0 {
			shown.Unit = u
			if n := l.Window / w; n > 1 {
				shown.UnitMultiplier = wrapperspb.UInt32(uint32(n))
			}
			break
		}
	}
	return shown
}

// OverrideName returns the name of the policy of requests that bring their own limit, for n
// units. Windows of different lengths have separate counts.
func OverrideName(u Unit, n uint32) string {
	name := "override." + strings.ToLower(u.String())
	if n > 1 {
		name += "." + strconv.FormatUint(uint64(n), 10)
	}
	return name
}
