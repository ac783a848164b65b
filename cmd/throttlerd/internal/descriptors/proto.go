package descriptors

import (
	"cmp"
	"errors"

	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/internal/invalid"
)

// FromProto returns a management server's configuration of a domain, checked like a file.
func FromProto(c *rlsconfv3.RateLimitConfig) (*envoyfile.File, error) {
	f := &envoyfile.File{Source: cmp.Or(c.GetName(), c.GetDomain()), Domain: c.GetDomain(), Descriptors: fromProto(c.GetDescriptors())}
	var problems []error
	f.Check(func(path, right string) {
		problems = append(problems, invalid.Errorf("%s: %s is wrong; it must be %s", f.Source, path, right))
	})
	return f, errors.Join(problems...)
}

func fromProto(list []*rlsconfv3.RateLimitDescriptor) []envoyfile.Descriptor {
	to := make([]envoyfile.Descriptor, len(list))
	for i, d := range list {
		to[i] = envoyfile.Descriptor{
			Key: d.GetKey(), Value: d.GetValue(), ShadowMode: d.GetShadowMode(), QuotaMode: d.GetQuotaMode(),
			DetailedMetric: d.GetDetailedMetric(), Fields: fieldsOf(d.GetMetadata()), Descriptors: fromProto(d.GetDescriptors()),
		}
		l := d.GetRateLimit()
		if l == nil {
			continue
		}
		requests := envoyfile.Count(l.GetRequestsPerUnit())
		to[i].RateLimit = &envoyfile.RateLimit{
			Unit: unitOf(l.GetUnit()), RequestsPerUnit: &requests, Unlimited: l.GetUnlimited(), Name: l.GetName(),
		}
		for _, r := range l.GetReplaces() {
			to[i].RateLimit.Replaces = append(to[i].RateLimit.Replaces, envoyfile.Replaced{Name: r.GetName()})
		}
	}
	return to
}

func fieldsOf(s *structpb.Struct) map[string]any {
	if s == nil {
		return nil
	}
	return s.AsMap()
}
