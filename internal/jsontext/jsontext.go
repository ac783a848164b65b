// Package jsontext checks JSON that people write for what encoding/json takes silently.
package jsontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Listed returns text without a byte order mark, and with each string under the key list in
// brackets: a list of one may be written without them. It keeps the lines. The error is about
// what decoding would lose or change: of two values under one key the last would hold, null
// would be as if it were not there, and bytes that aren't UTF-8 would become others. Text that
// is not JSON is returned unchanged, for the decoder's error.
func Listed(text []byte, list string) ([]byte, error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if !json.Valid(text) {
		return text, nil
	}
	if !utf8.Valid(text) {
		return text, errors.New("the text is not UTF-8")
	}
	w := walk{list: list}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			w.open = append(w.open, level{isObject: text[i] == '{', isKey: text[i] == '{'})
		case '}', ']':
			w.open = w.open[:len(w.open)-1]
		case ',':
			w.last().isKey = w.last().isObject
		case '"':
			end := i + 1
			for ; text[end] != '"'; end++ {
				if text[end] == '\\' {
					end++
				}
			}
			if err := w.text(text[i:end+1], i); err != nil {
				return text, err
			}
			i = end
		case 'n':
			return text, w.null()
		}
	}
	return w.listed(text), nil
}

// maxKeys bounds the keys of an object, which are compared with one another.
const maxKeys = 100

// walk is a walk through a text.
type walk struct {
	list    string
	open    []level
	strings [][2]int // the bounds of strings under list
}

// level is an object or a list that is open.
type level struct {
	isObject, isKey bool // isKey: the next string is a key
	keys            []string
}

func (w *walk) last() *level { return &w.open[len(w.open)-1] }

// text is called for each string, with its quotes and its place.
func (w *walk) text(quoted []byte, at int) error {
	if len(w.open) == 0 {
		return nil
	}
	in := w.last()
	switch {
	case in.isKey:
		in.isKey = false
		var key string
		_ = json.Unmarshal(quoted, &key) // it is valid
		key = strings.ToLower(key)       // encoding/json ignores the case
		if slices.Contains(in.keys, key) {
			return fmt.Errorf("%q appears twice", key)
		}
		if len(in.keys) == maxKeys {
			return fmt.Errorf("an object has more than %d keys", maxKeys)
		}
		in.keys = append(in.keys, key)
	case in.isObject && in.keys[len(in.keys)-1] == w.list:
		w.strings = append(w.strings, [2]int{at, at + len(quoted)})
	}
	return nil
}

// null returns the error of a null that the walk is at.
func (w *walk) null() error {
	for _, l := range slices.Backward(w.open) {
		if l.isObject {
			return fmt.Errorf("%q is null, or has one; it must have a value, or be left out", l.keys[len(l.keys)-1])
		}
	}
	return errors.New("it is null, and not an object")
}

func (w *walk) listed(text []byte) []byte {
	if len(w.strings) == 0 {
		return text
	}
	var all []byte
	from := 0
	for _, s := range w.strings {
		all = append(all, text[from:s[0]]...)
		all = append(append(append(all, '['), text[s[0]:s[1]]...), ']')
		from = s[1]
	}
	return append(all, text[from:]...)
}
