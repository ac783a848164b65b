package flagfile

import (
	"context"
	"fmt"

	"github.com/open-feature/go-sdk/openfeature"
)

// resolve returns the value of a flag, as one of type T, which kind names.
func resolve[T any](p *Provider, key string, fallback T, flat openfeature.FlattenedContext, kind string) (T, openfeature.ProviderResolutionDetail) {
	fail := func(err openfeature.ResolutionError) (T, openfeature.ProviderResolutionDetail) {
		return fallback, openfeature.ProviderResolutionDetail{ResolutionError: err, Reason: openfeature.ErrorReason}
	}
	flags := p.flags.Load()
	if flags == nil {
		return fail(openfeature.NewProviderNotReadyResolutionError(p.name + " has not been read yet"))
	}
	f := (*flags)[key]
	switch {
	case f == nil:
		return fail(openfeature.NewFlagNotFoundResolutionError(fmt.Sprintf("%s has no flag %q", p.name, key)))
	case f.disabled:
		return fallback, openfeature.ProviderResolutionDetail{Reason: openfeature.DisabledReason}
	}
	variant, reason := f.defaultVariant, openfeature.StaticReason
	if f.targeting != nil {
		reason = openfeature.DefaultReason
		selected, err := f.targeting(scope{flag: key, context: flat})
		if err != nil {
			return fail(openfeature.NewGeneralResolutionError(fmt.Sprintf("flag %q: %v", key, err)))
		}
		if selected != nil {
			name, isName := nameOf(selected)
			if _, known := f.variants[name]; !isName || !known {
				return fail(openfeature.NewGeneralResolutionError(fmt.Sprintf("flag %q: targeting chose %v, which is no variant", key, selected)))
			}
			variant, reason = name, openfeature.TargetingMatchReason
		}
	}
	if variant == "" { // as flagd has it: without a default variant, the code's default
		return fallback, openfeature.ProviderResolutionDetail{Reason: openfeature.DefaultReason}
	}
	value, ok := f.variants[variant].(T)
	if !ok {
		return fail(openfeature.NewTypeMismatchResolutionError(fmt.Sprintf("flag %q: variant %q is no %s", key, variant, kind)))
	}
	return value, openfeature.ProviderResolutionDetail{Variant: variant, Reason: reason}
}

// nameOf returns the variant that a rule chose: flagd takes booleans for names
// too.
func nameOf(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return fmt.Sprint(v), true
	}
	return "", false
}

// StringEvaluation implements openfeature.FeatureProvider.
func (p *Provider) StringEvaluation(_ context.Context, key, fallback string, flat openfeature.FlattenedContext) openfeature.StringResolutionDetail {
	value, detail := resolve(p, key, fallback, flat, "string")
	return openfeature.StringResolutionDetail{Value: value, ProviderResolutionDetail: detail}
}

// BooleanEvaluation implements openfeature.FeatureProvider.
func (p *Provider) BooleanEvaluation(_ context.Context, key string, fallback bool, flat openfeature.FlattenedContext) openfeature.BoolResolutionDetail {
	value, detail := resolve(p, key, fallback, flat, "boolean")
	return openfeature.BoolResolutionDetail{Value: value, ProviderResolutionDetail: detail}
}

// FloatEvaluation implements openfeature.FeatureProvider.
func (p *Provider) FloatEvaluation(_ context.Context, key string, fallback float64, flat openfeature.FlattenedContext) openfeature.FloatResolutionDetail {
	value, detail := resolve(p, key, fallback, flat, "number")
	return openfeature.FloatResolutionDetail{Value: value, ProviderResolutionDetail: detail}
}

// IntEvaluation implements openfeature.FeatureProvider.
func (p *Provider) IntEvaluation(_ context.Context, key string, fallback int64, flat openfeature.FlattenedContext) openfeature.IntResolutionDetail {
	value, detail := resolve(p, key, float64(fallback), flat, "number")
	return openfeature.IntResolutionDetail{Value: int64(value), ProviderResolutionDetail: detail}
}

// ObjectEvaluation implements openfeature.FeatureProvider.
func (p *Provider) ObjectEvaluation(_ context.Context, key string, fallback any, flat openfeature.FlattenedContext) openfeature.InterfaceResolutionDetail {
	value, detail := resolve(p, key, fallback, flat, "value")
	return openfeature.InterfaceResolutionDetail{Value: value, ProviderResolutionDetail: detail}
}
