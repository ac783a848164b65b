package descriptors

import (
	"cmp"
	"errors"

	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-go/weir/internal/invalid"
)

// FromProto returns what a management server says of a domain, checked as a file is.
func FromProto(c *rlsconfv3.RateLimitConfig) (*File, error) {
	f := &File{name: cmp.Or(c.GetName(), c.GetDomain()), Domain: text(c.GetDomain()), Descriptors: fromProto(c.GetDescriptors())}
	var problems []error
	f.Check(func(path, right string) {
		problems = append(problems, invalid.Errorf("%s: %s is wrong; it must be %s", f.name, path, right))
	})
	return f, errors.Join(problems...)
}

func fromProto(all []*rlsconfv3.RateLimitDescriptor) []Descriptor {
	to := make([]Descriptor, len(all))
	for i, d := range all {
		to[i] = Descriptor{
			Key: text(d.GetKey()), Value: text(d.GetValue()), ShadowMode: boolean(d.GetShadowMode()), QuotaMode: boolean(d.GetQuotaMode()),
			DetailedMetric: boolean(d.GetDetailedMetric()), metadata: d.GetMetadata(), Descriptors: fromProto(d.GetDescriptors()),
		}
		l := d.GetRateLimit()
		if l == nil {
			continue
		}
		to[i].RateLimit = &RateLimit{
			Unit: unit(l.GetUnit()), RequestsPerUnit: count(l.GetRequestsPerUnit()), Unlimited: boolean(l.GetUnlimited()), Name: text(l.GetName()),
		}
		for _, r := range l.GetReplaces() {
			to[i].RateLimit.Replaces = append(to[i].RateLimit.Replaces, replaced{text(r.GetName())})
		}
	}
	return to
}
