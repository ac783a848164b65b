package flagfile

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/open-feature/go-sdk/openfeature"
)

// rule is a compiled JsonLogic expression. Its value is a string, a bool, a
// float64, a []any, or nil.
type rule func(s scope) (any, error)

// scope is what a rule can ask about.
type scope struct {
	flag    string
	context openfeature.FlattenedContext
}

// compile returns the rule that node is. at is its place in the flag, for
// errors.
func compile(node any, at string, variants map[string]any) (rule, error) {
	object, ok := node.(map[string]any)
	if !ok {
		return compileValue(node, at, variants)
	}
	if len(object) != 1 {
		return nil, fmt.Errorf("%s has %d operators; it must have one", at, len(object))
	}
	for name, argument := range object {
		arguments, ok := argument.([]any)
		if !ok {
			arguments = []any{argument} // JsonLogic's short form
		}
		at += "." + name
		if name == "fractional" {
			return compileFractional(arguments, at, variants)
		}
		make, ok := operators[name]
		if !ok {
			return nil, fmt.Errorf("%s is not supported here; of flagd's operators, fractional, %s are", at, strings.Join(slices.Sorted(maps.Keys(operators)), ", "))
		}
		var rules []rule
		for i, a := range arguments {
			r, err := compile(a, fmt.Sprintf("%s[%d]", at, i), variants)
			if err != nil {
				return nil, err
			}
			rules = append(rules, r)
		}
		r, err := make(rules)
		if err != nil {
			return nil, fmt.Errorf("%s %w", at, err)
		}
		return r, nil
	}
	panic("unreachable")
}

func compileValue(node any, at string, variants map[string]any) (rule, error) {
	list, ok := node.([]any)
	if !ok {
		return func(scope) (any, error) { return node, nil }, nil
	}
	var rules []rule
	for i, item := range list {
		r, err := compile(item, fmt.Sprintf("%s[%d]", at, i), variants)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return func(s scope) (any, error) {
		values, err := evaluate(rules, s)
		return values, err
	}, nil
}

func evaluate(rules []rule, s scope) ([]any, error) {
	values := make([]any, len(rules))
	for i, r := range rules {
		var err error
		if values[i], err = r(s); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// operators are the JsonLogic operators that rollouts need in addition to
// fractional, to put some clients on a side by name.
var operators = map[string]func([]rule) (rule, error){
	"if":  compileIf,
	"==":  compileEqual,
	"in":  compileIn,
	"cat": compileCat,
	"var": compileVar,
}

func compileIf(arguments []rule) (rule, error) {
	if len(arguments) < 2 {
		return nil, errors.New("needs a condition and what follows from it")
	}
	return func(s scope) (any, error) {
		i := 0
		for ; i+1 < len(arguments); i += 2 {
			condition, err := arguments[i](s)
			if err != nil {
				return nil, err
			}
			if truthy(condition) {
				return arguments[i+1](s)
			}
		}
		if i < len(arguments) {
			return arguments[i](s)
		}
		return nil, nil
	}, nil
}

func truthy(v any) bool {
	switch v := v.(type) {
	case bool:
		return v
	case string:
		return v != ""
	case float64:
		return v != 0
	case []any:
		return len(v) > 0
	}
	return false
}

func compileEqual(arguments []rule) (rule, error) {
	if len(arguments) != 2 {
		return nil, errors.New("needs two values")
	}
	return func(s scope) (any, error) {
		values, err := evaluate(arguments, s)
		if err != nil {
			return nil, err
		}
		return equal(values[0], values[1])
	}, nil
}

// equal compares scalars of one type, or with null. JsonLogic converts others, by
// rules that evaluators read differently.
func equal(a, b any) (bool, error) {
	_, aList := a.([]any)
	_, bList := b.([]any)
	if aList || bList || a != nil && b != nil && reflect.TypeOf(a) != reflect.TypeOf(b) {
		return false, fmt.Errorf("%v is compared with %v; they must be of one type, and no lists", a, b)
	}
	return a == b, nil
}

func compileIn(arguments []rule) (rule, error) {
	if len(arguments) != 2 {
		return nil, errors.New("needs a value and a list, or a string and a string that may have it")
	}
	return func(s scope) (any, error) {
		values, err := evaluate(arguments, s)
		if err != nil {
			return nil, err
		}
		switch whole := values[1].(type) {
		case nil:
			return false, nil
		case []any:
			for _, v := range whole {
				if same, err := equal(v, values[0]); same || err != nil {
					return same, err
				}
			}
			return false, nil
		case string:
			if part, ok := values[0].(string); ok {
				return strings.Contains(whole, part), nil
			}
		}
		return nil, fmt.Errorf("in looks for %v in %v; it must be a string in a string, or a value in a list", values[0], values[1])
	}, nil
}

func compileCat(arguments []rule) (rule, error) {
	return func(s scope) (any, error) {
		values, err := evaluate(arguments, s)
		if err != nil {
			return nil, err
		}
		var all strings.Builder
		for _, v := range values {
			part, ok := v.(string)
			if !ok && v != nil {
				return nil, fmt.Errorf("cat joins %v; it must be a string", v)
			}
			all.WriteString(part)
		}
		return all.String(), nil
	}, nil
}

// flagKeyVar names the flag's key to var.
const flagKeyVar = "$flagd.flagKey"

// compileVar makes a rule of what the evaluation context has: targetingKey and
// the attributes, and $flagd.flagKey. JsonLogic takes "" for the whole context and
// dots for a way into an attribute; neither is supported.
func compileVar(arguments []rule) (rule, error) {
	if len(arguments) < 1 || len(arguments) > 2 {
		return nil, errors.New("needs a name, and may have a default")
	}
	return func(s scope) (any, error) {
		values, err := evaluate(arguments, s)
		if err != nil {
			return nil, err
		}
		name, ok := values[0].(string)
		if !ok {
			return nil, fmt.Errorf("var needs a name, got %v", values[0])
		}
		if name == flagKeyVar {
			return s.flag, nil
		}
		if name == "" || strings.Contains(name, ".") {
			return nil, fmt.Errorf("var is %q; it must be targetingKey, %s or the name of an attribute, without a dot", name, flagKeyVar)
		}
		switch v := s.context[name].(type) {
		case nil:
		case string, bool, float64:
			return v, nil
		case int64:
			return float64(v), nil
		case int:
			return float64(v), nil
		default:
			return nil, fmt.Errorf("attribute %q is a %T; it must be a string, a number or a boolean", name, v)
		}
		if len(values) == 2 {
			return values[1], nil
		}
		return nil, nil
	}, nil
}

// share is a variant and its weight in a fractional rule.
type share struct {
	variant any
	weight  uint64
}

// compileFractional makes a rule that draws a variant: the client's place in
// 32 bits of MurmurHash3, scaled to the sum of the weights, falls into one
// variant's share. So does flagd, from version 0.16 of its core on.
//
// What is hashed is the first argument, if that is no share; else the flag's
// key and the targeting key. Without a targeting key, no variant is selected.
func compileFractional(arguments []any, at string, variants map[string]any) (rule, error) {
	var bucketBy rule
	if len(arguments) > 0 {
		if _, isShare := arguments[0].([]any); !isShare {
			var err error
			if bucketBy, err = compile(arguments[0], at+"[0]", variants); err != nil {
				return nil, err
			}
		}
	}
	var shares []share
	var total uint64
	for i, a := range arguments {
		if i == 0 && bucketBy != nil {
			continue
		}
		s, err := parseShare(a, variants)
		if err != nil {
			return nil, fmt.Errorf("%s[%d] %w", at, i, err)
		}
		shares = append(shares, s)
		total += s.weight
	}
	if total == 0 || total > math.MaxInt32 {
		return nil, fmt.Errorf("%s has %d variants whose weights add up to %d; they must add up to 1 to %d", at, len(shares), total, math.MaxInt32)
	}
	return func(s scope) (any, error) {
		key, ok, err := bucketKey(bucketBy, s)
		if !ok || err != nil {
			return nil, err
		}
		place := uint64(murmur3(key)) * total >> 32
		for _, share := range shares {
			if place < share.weight {
				return share.variant, nil
			}
			place -= share.weight
		}
		panic("unreachable")
	}, nil
}

// bucketKey returns what is hashed, if there is something.
func bucketKey(bucketBy rule, s scope) (key string, ok bool, err error) {
	if bucketBy != nil {
		v, err := bucketBy(s)
		if err != nil {
			return "", false, err
		}
		if key, ok := v.(string); ok {
			return key, true, nil
		}
		if v != nil {
			return "", false, fmt.Errorf("fractional buckets by %v; it must be a string", v)
		}
	}
	key, _ = s.context[openfeature.TargetingKey].(string)
	return s.flag + key, key != "", nil
}

// parseShare reads ["variant", weight] or ["variant"], which weighs 1.
func parseShare(node any, variants map[string]any) (share, error) {
	pair, ok := node.([]any)
	if !ok || len(pair) == 0 || len(pair) > 2 {
		return share{}, fmt.Errorf(`is %v; it must be a variant and its weight, such as ["redis", 30]`, node)
	}
	if name, ok := nameOf(pair[0]); pair[0] != nil {
		if _, known := variants[name]; !ok || !known {
			return share{}, fmt.Errorf("is for %v; it must be one of the variants: %s", pair[0], strings.Join(slices.Sorted(maps.Keys(variants)), ", "))
		}
	}
	s := share{variant: pair[0], weight: 1}
	if len(pair) == 2 && pair[1] != nil {
		weight, ok := pair[1].(float64)
		// flagd takes a negative weight for 0; its author meant something else.
		if !ok || weight != math.Trunc(weight) || weight < 0 || weight > math.MaxInt32 {
			return share{}, fmt.Errorf("weighs %v; it must be a whole number from 0 to %d", pair[1], math.MaxInt32)
		}
		s.weight = uint64(weight)
	}
	return s, nil
}
