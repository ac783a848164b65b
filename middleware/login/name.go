package login

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// A Name returns the name of the account that a request is an attempt on, as the client wrote it.
// An empty name, or an error, is answered 400. A Name that reads the body must restore it.
//
// If the application has several names for an account, such as a user's name and the address,
// each has the quota of perAccount, unless the Name looks up which account they are.
type Name func(r *http.Request) (string, error)

// maxBody is how long a body with the name of an account may be, in bytes.
const maxBody = 64 << 10

var (
	errTooLong = errors.New("login: the body is too long")
	errNoName  = errors.New("login: the body has no name, or several")
)

// Form returns a Name that reads a field of a form in the body, as r.PostFormValue does. A form
// that has the field twice, or has it in the query too, is answered 400: another reader might take
// the other one. Form panics if field is empty.
func Form(field string) Name {
	if field == "" {
		panic("login: Form: the field is empty; it must be the name of the form's field, such as account")
	}
	return func(r *http.Request) (string, error) {
		body, err := readBody(r)
		if err != nil {
			return "", err
		}
		form := &http.Request{Method: http.MethodPost, URL: new(url.URL), Header: r.Header, Body: io.NopCloser(bytes.NewReader(body))}
		if err := form.ParseMultipartForm(2 * maxBody); err != nil && !errors.Is(err, http.ErrNotMultipart) {
			return "", err
		}
		if form.MultipartForm != nil {
			_ = form.MultipartForm.RemoveAll()
		}
		values := form.PostForm[field]
		if len(values) != 1 || r.URL.Query().Has(field) {
			return "", errNoName
		}
		return values[0], nil
	}
}

// JSON returns a Name that reads a member of a JSON object in the body. It must be a string. Like
// encoding/json, it ignores the case of the member's name; a second one, in whatever case, is
// answered 400. JSON panics if member is empty.
func JSON(member string) Name {
	if member == "" {
		panic("login: JSON: the member is empty; it must be the name of the object's member, such as account")
	}
	return func(r *http.Request) (string, error) {
		body, err := readBody(r)
		if err != nil {
			return "", err
		}
		if !utf8.Valid(body) {
			return "", errNoName
		}
		d := json.NewDecoder(bytes.NewReader(body))
		if t, err := d.Token(); err != nil || t != json.Delim('{') {
			return "", errNoName
		}
		name, found := "", 0
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return "", err
			}
			var value any
			if err := d.Decode(&value); err != nil {
				return "", err
			}
			if text, ok := key.(string); ok && strings.EqualFold(text, member) {
				if name, ok = value.(string); !ok {
					return "", errNoName
				}
				found++
			}
		}
		if _, err := d.Token(); err != nil || found != 1 {
			return "", errNoName
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return "", errNoName
		}
		return name, nil
	}
}

// readBody returns the body of r, and lets it be read again.
func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, errNoName
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxBody {
		return nil, errTooLong
	}
	r.Body = restored{bytes.NewReader(body), r.Body}
	return body, nil
}

// restored is a body that was read, and closes the client's.
type restored struct {
	io.Reader
	io.Closer
}
