package flagfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/open-feature/go-sdk/openfeature"
)

// flag is one flag of a file.
type flag struct {
	State          string            `json:"state"`
	Variants       map[string]string `json:"variants"`
	DefaultVariant string            `json:"defaultVariant"`
	Targeting      any               `json:"targeting"`

	// Parsed from Targeting.
	pinned   []string // the targeting keys that get pinnedTo
	pinnedTo string
	shares   []share // of all other clients; nil without targeting
	total    uint64  // of the shares' weights
}

// share is a variant and its weight.
type share struct {
	variant string
	weight  uint64
}

// parse returns the flags of a file. The error has the line of the wrong character or
// flag, and the place in the flag.
func parse(text []byte) (map[string]*flag, error) {
	var syntax *json.SyntaxError
	if err := json.Unmarshal(text, new(json.RawMessage)); errors.As(err, &syntax) {
		return nil, fmt.Errorf("line %d: %w", lineOf(text, int(syntax.Offset)-1), err)
	}
	var file struct {
		Schema any                        `json:"$schema"`
		Flags  map[string]json.RawMessage `json:"flags"`
	}
	if err := decode(text, &file, "$schema and flags"); err != nil {
		return nil, err
	}
	if file.Flags == nil {
		return nil, errors.New(`"flags" is missing; it must be an object of flags by their keys`)
	}
	flags := make(map[string]*flag, len(file.Flags))
	for _, key := range slices.Sorted(maps.Keys(file.Flags)) {
		f := new(flag)
		err := decode(file.Flags[key], f, "state, variants, defaultVariant and targeting")
		if err == nil {
			err = f.check()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: flag %q: %w", lineOf(text, bytes.Index(text, file.Flags[key])), key, err)
		}
		flags[key] = f
	}
	return flags, nil
}

// decode decodes a JSON object. Unknown keys are an error; keys lists the known ones.
func decode(text []byte, into any, keys string) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		want := "an object"
		if kind.Type.Kind() == reflect.String {
			want = "a string"
		}
		return fmt.Errorf("%sa JSON %s where %s must be", strings.TrimPrefix(kind.Field+": ", ": "), kind.Value, want)
	}
	if err != nil {
		return fmt.Errorf("%s; the keys supported here are %s", strings.TrimPrefix(err.Error(), "json: "), keys)
	}
	return nil
}

func lineOf(text []byte, offset int) int {
	return 1 + bytes.Count(text[:max(offset, 0)], []byte("\n"))
}

func (f *flag) check() error {
	if f.State != "ENABLED" && f.State != "DISABLED" {
		return fmt.Errorf(`state is %q; it must be "ENABLED" or "DISABLED"`, f.State)
	}
	if len(f.Variants) == 0 {
		return errors.New("variants are missing; at least one is needed")
	}
	if _, err := f.variantOf(f.DefaultVariant); err != nil {
		return fmt.Errorf("defaultVariant is %w", err)
	}
	return f.parseTargeting()
}

// variantOf returns node, which must be the name of a variant.
func (f *flag) variantOf(node any) (string, error) {
	name, ok := node.(string)
	if _, known := f.Variants[name]; ok && known {
		return name, nil
	}
	return "", fmt.Errorf("%s; it must be one of the variants: %s", asJSON(node), strings.Join(slices.Sorted(maps.Keys(f.Variants)), ", "))
}

func asJSON(node any) string {
	text, _ := json.Marshal(node) // node was decoded from JSON
	return string(text)
}

// parseTargeting parses the forms of targeting that the package comment shows.
func (f *flag) parseTargeting() (err error) {
	if object, ok := f.Targeting.(map[string]any); f.Targeting == nil || ok && len(object) == 0 {
		return nil
	}
	rule, at := f.Targeting, "targeting"
	if branches := argumentsOf(rule, "if"); len(branches) == 3 {
		var ok bool
		if f.pinned, ok = keysOf(branches[0]); !ok {
			return fmt.Errorf(`targeting.if[0] is %s; it must be {"in": [{"var": "targetingKey"}, ["KEY", "KEY"]]}`, asJSON(branches[0]))
		}
		if f.pinnedTo, err = f.variantOf(branches[1]); err != nil {
			return fmt.Errorf("targeting.if[1] is %w", err)
		}
		rule, at = branches[2], "targeting.if[2]"
	}
	arguments := argumentsOf(rule, "fractional")
	if arguments == nil {
		return fmt.Errorf(`%s is %s; it must be {"fractional": [["VARIANT", WEIGHT], ["VARIANT", WEIGHT]]}, alone or as the third part of an "if": other rules need flagd`, at, asJSON(rule))
	}
	return f.parseShares(arguments, at+".fractional")
}

func (f *flag) parseShares(arguments []any, at string) error {
	for i, argument := range arguments {
		pair, _ := argument.([]any)
		if len(pair) != 2 {
			return fmt.Errorf(`%s[%d] is %s; it must be a variant and its weight, such as ["redis", 30]`, at, i, asJSON(argument))
		}
		variant, err := f.variantOf(pair[0])
		if err != nil {
			return fmt.Errorf("%s[%d] is for %w", at, i, err)
		}
		weight, ok := pair[1].(float64)
		// flagd reads a negative weight as 0, but its author meant something different.
		if !ok || weight != math.Trunc(weight) || weight < 0 || weight > math.MaxInt32 {
			return fmt.Errorf("%s[%d] weighs %s; it must be a whole number from 0 to %d", at, i, asJSON(pair[1]), math.MaxInt32)
		}
		f.shares = append(f.shares, share{variant: variant, weight: uint64(weight)})
		f.total += uint64(weight)
	}
	if f.total == 0 || f.total > math.MaxInt32 {
		return fmt.Errorf("%s has weights that add up to %d; they must add up to 1 to %d", at, f.total, math.MaxInt32)
	}
	return nil
}

// argumentsOf returns the list in {operator: list}, or nil if node has another form.
func argumentsOf(node any, operator string) []any {
	object, _ := node.(map[string]any)
	arguments, _ := object[operator].([]any)
	if len(object) != 1 {
		return nil
	}
	return arguments
}

// keysOf returns the keys in {"in": [{"var": "targetingKey"}, keys]}.
func keysOf(condition any) (keys []string, ok bool) {
	in := argumentsOf(condition, "in")
	if len(in) != 2 || !reflect.DeepEqual(in[0], map[string]any{"var": openfeature.TargetingKey}) {
		return nil, false
	}
	list, ok := in[1].([]any)
	for _, item := range list {
		key, isString := item.(string)
		ok = ok && isString
		keys = append(keys, key)
	}
	return keys, ok
}
