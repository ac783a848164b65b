package policies

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/jsontext"
)

// ParseJSON parses text as Content. Limits are written as quota.ParseLimit reads them:
//
//	{
//	  "policies": [
//	    {"name": "core", "limits": ["5000 per 1h", "100 per 1m"]},
//	    {"name": "logs", "limits": ["100 per 1s"], "parent": "core", "parent_key": "acme"},
//	    {"name": "tokens", "limits": ["90000 per 1m"], "unit": "tokens"},
//	    {"name": "search", "limits": ["10 per 1m"], "until": "2030-01-02T03:04:05Z"}
//	  ],
//	  "overrides": [
//	    {"policy": "core", "key": "acme", "limits": ["50000 per 1h"], "owner": "sales"},
//	    {"policy": "core", "key": "mallory", "blocked": true, "reason": "scrapes"},
//	    {"policy": "core", "key": "bob", "unlimited": true, "until": "2030-01-02T03:04:05Z"}
//	  ]
//	}
//
// A single limit may be written without its list. A field of another name, a field that
// appears twice and a null are errors. All errors wrap quota.ErrInvalid. ParseJSON does not
// validate the policies and overrides; [Edit.Replace] does.
func ParseJSON(text []byte) (Content, error) {
	var c Content
	text, mistake := jsontext.Listed(text, "limits")
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(&c)
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("the text is empty; it must be an object, such as {}")
	case err == nil:
		if _, after := d.Token(); !errors.Is(after, io.EOF) {
			err = errors.New("there is more after the object")
		}
	}
	if err != nil {
		err = described(err)
	}
	if err = cmp.Or(mistake, err); err != nil {
		return Content{}, invalid.Errorf("policies: %s%v", lineOf(text, err), err)
	}
	return c, nil
}

// described returns err, of encoding/json, with what would be right.
func described(err error) error {
	var kind *json.UnmarshalTypeError
	if _, field, ok := strings.Cut(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("unknown field %s; a policy has name, limits, unit, hidden, parent, parent_key and until, and an override policy, key, limits, blocked, unlimited, parent_key, until, owner and reason", field)
	}
	if errors.As(err, &kind) {
		right := ""
		switch kind.Type.Kind() { // the other kinds are of no field
		case reflect.Slice:
			right = "a list"
		case reflect.Struct:
			right = "an object"
		case reflect.String:
			right = "a text"
		case reflect.Bool:
			right = "true or false"
		default:
			return err
		}
		return typeError{kind, fmt.Sprintf("%s is of type %s; it must be %s", cmp.Or(kind.Field, "the text"), kind.Value, right)}
	}
	return err
}

// typeError is an error with a place, in other words.
type typeError struct {
	error
	text string
}

func (e typeError) Error() string { return e.text }
func (e typeError) Unwrap() error { return e.error }

// lineOf returns the line of err in text, or "" if err doesn't say where it is.
func lineOf(text []byte, err error) string {
	offset := int64(0)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	case errors.Is(err, io.ErrUnexpectedEOF):
		offset = int64(len(text))
	default:
		return ""
	}
	before := text[:min(max(offset, 0), int64(len(text)))]
	return fmt.Sprintf("line %d: ", bytes.Count(before, []byte("\n"))+1)
}
