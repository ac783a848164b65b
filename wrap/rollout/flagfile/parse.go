package flagfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// flag is one flag, ready to be evaluated.
type flag struct {
	disabled       bool
	variants       map[string]any
	defaultVariant string // "" if there is none
	targeting      rule   // nil if there is none
}

// parse returns the flags of a file. The error says what is wrong and where: the
// line, or the flag and key.
func parse(text []byte) (map[string]*flag, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("the file is empty")
	}
	var file struct {
		Flags      map[string]json.RawMessage `json:"flags"`
		Evaluators json.RawMessage            `json:"$evaluators"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&file); err != nil {
		return nil, located(text, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("line %d: something follows the end of the JSON", lineOf(text, decoder.InputOffset()))
	}
	if file.Flags == nil {
		return nil, errors.New(`"flags" is missing; it must be an object of flags by their keys`)
	}
	if file.Evaluators != nil {
		return nil, errors.New(`"$evaluators" is not supported here, only by flagd; write the rules where they are used`)
	}
	flags := make(map[string]*flag, len(file.Flags))
	for _, key := range slices.Sorted(maps.Keys(file.Flags)) {
		f, err := parseFlag(file.Flags[key])
		if err != nil {
			at := bytes.Index(text, file.Flags[key])
			return nil, fmt.Errorf("line %d: flag %q: %w", lineOf(text, int64(at)), key, err)
		}
		flags[key] = f
	}
	return flags, nil
}

func parseFlag(text json.RawMessage) (*flag, error) {
	var file struct {
		State          string          `json:"state"`
		Variants       map[string]any  `json:"variants"`
		DefaultVariant *string         `json:"defaultVariant"`
		Targeting      any             `json:"targeting"`
		Metadata       json.RawMessage `json:"metadata"`
		Comment        json.RawMessage `json:"$comment"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return nil, fmt.Errorf("unknown key %s; the keys of a flag are state, variants, defaultVariant, targeting and metadata", name)
		}
		return nil, described(err)
	}
	f := &flag{disabled: file.State == "DISABLED", variants: file.Variants}
	if !f.disabled && file.State != "ENABLED" {
		return nil, fmt.Errorf(`state is %q; it must be "ENABLED" or "DISABLED"`, file.State)
	}
	if len(f.variants) == 0 {
		return nil, errors.New("variants are missing; at least one is needed")
	}
	if file.DefaultVariant != nil {
		f.defaultVariant = *file.DefaultVariant
		if _, ok := f.variants[f.defaultVariant]; !ok {
			return nil, fmt.Errorf("defaultVariant is %q; it must be one of the variants: %s", f.defaultVariant, strings.Join(slices.Sorted(maps.Keys(f.variants)), ", "))
		}
	}
	if object, ok := file.Targeting.(map[string]any); file.Targeting == nil || ok && len(object) == 0 {
		return f, nil
	}
	for name := range f.variants {
		// flagd finds a variant by its name in JSON, without the quotes.
		if text, err := json.Marshal(name); err != nil || string(text) != `"`+name+`"` || strings.TrimSpace(name) != name {
			return nil, fmt.Errorf("variants has %q, which targeting cannot choose; a name must have no character that JSON escapes, and no space around it", name)
		}
	}
	var err error
	f.targeting, err = compile(file.Targeting, "targeting", f.variants)
	return f, err
}

// located adds the line to an error of encoding/json.
func located(text []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("line %d: the JSON ends too early", lineOf(text, int64(len(text))))
	case errors.As(err, &syntax):
		return fmt.Errorf("line %d: %w", lineOf(text, syntax.Offset), err)
	case errors.As(err, &kind):
		return fmt.Errorf("line %d: %w", lineOf(text, kind.Offset), described(err))
	}
	return err
}

func described(err error) error {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return err
	}
	mustBe := map[string]string{"string": "a string", "map": "an object", "struct": "an object"}[kind.Type.Kind().String()]
	if kind.Field == "" {
		return fmt.Errorf("is a JSON %s; it must be %s", kind.Value, mustBe)
	}
	return fmt.Errorf("%s is a JSON %s; it must be %s", kind.Field, kind.Value, mustBe)
}

func lineOf(text []byte, offset int64) int {
	return 1 + bytes.Count(text[:min(max(offset, 0), int64(len(text)))], []byte("\n"))
}
