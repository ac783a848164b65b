package flagfile

import (
	"context"
	"fmt"
	"slices"

	"github.com/open-feature/go-sdk/openfeature"
)

// StringEvaluation implements openfeature.FeatureProvider.
func (p *Provider) StringEvaluation(_ context.Context, key, fallback string, flat openfeature.FlattenedContext) openfeature.StringResolutionDetail {
	value, detail := p.resolve(key, fallback, flat)
	return openfeature.StringResolutionDetail{Value: value, ProviderResolutionDetail: detail}
}

func (p *Provider) resolve(key, fallback string, flat openfeature.FlattenedContext) (string, openfeature.ProviderResolutionDetail) {
	file := p.file.Load()
	if file == nil {
		return fallback, failed(openfeature.NewProviderNotReadyResolutionError(p.name + " has not been read yet"))
	}
	f := file.flags[key]
	switch {
	case f == nil:
		return fallback, failed(openfeature.NewFlagNotFoundResolutionError(fmt.Sprintf("%s has no flag %q", p.name, key)))
	case f.State == "DISABLED":
		return fallback, openfeature.ProviderResolutionDetail{Reason: openfeature.DisabledReason}
	}
	targetingKey, _ := flat[openfeature.TargetingKey].(string)
	variant, reason := f.variant(key, targetingKey)
	return f.Variants[variant], openfeature.ProviderResolutionDetail{Variant: variant, Reason: reason}
}

// variant returns the variant of a client, and the reason for it. A client's place is
// the 32-bit MurmurHash3 of the flag's key and the targeting key, scaled to the sum of
// the weights, and falls into one variant's share. flagd does the same, from version
// 0.16 of its core on.
func (f *flag) variant(key, targetingKey string) (string, openfeature.Reason) {
	switch {
	case f.shares == nil:
		return f.DefaultVariant, openfeature.StaticReason
	case slices.Contains(f.pinned, targetingKey):
		return f.pinnedTo, openfeature.TargetingMatchReason
	case targetingKey == "":
		return f.DefaultVariant, openfeature.DefaultReason
	}
	place := uint64(murmur3(key+targetingKey)) * f.total >> 32
	for _, share := range f.shares {
		if place < share.weight {
			return share.variant, openfeature.TargetingMatchReason
		}
		place -= share.weight
	}
	panic("unreachable")
}

// BooleanEvaluation returns fallback and an error, because values are strings.
func (p *Provider) BooleanEvaluation(_ context.Context, key string, fallback bool, _ openfeature.FlattenedContext) openfeature.BoolResolutionDetail {
	return noString(key, fallback)
}

// FloatEvaluation returns fallback and an error, because values are strings.
func (p *Provider) FloatEvaluation(_ context.Context, key string, fallback float64, _ openfeature.FlattenedContext) openfeature.FloatResolutionDetail {
	return noString(key, fallback)
}

// IntEvaluation returns fallback and an error, because values are strings.
func (p *Provider) IntEvaluation(_ context.Context, key string, fallback int64, _ openfeature.FlattenedContext) openfeature.IntResolutionDetail {
	return noString(key, fallback)
}

// ObjectEvaluation returns fallback and an error, because values are strings.
func (p *Provider) ObjectEvaluation(_ context.Context, key string, fallback any, _ openfeature.FlattenedContext) openfeature.InterfaceResolutionDetail {
	return noString(key, fallback)
}

func noString[T any](key string, fallback T) openfeature.GenericResolutionDetail[T] {
	problem := openfeature.NewTypeMismatchResolutionError(fmt.Sprintf("flag %q: values are strings here; evaluate it as one", key))
	return openfeature.GenericResolutionDetail[T]{Value: fallback, ProviderResolutionDetail: failed(problem)}
}

func failed(err openfeature.ResolutionError) openfeature.ProviderResolutionDetail {
	return openfeature.ProviderResolutionDetail{ResolutionError: err, Reason: openfeature.ErrorReason}
}
