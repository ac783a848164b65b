package weirdebug

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// partRow is a line of a part's table: a number or a text under a name, or the name of the lines
// below it, whose Depth is one more.
type partRow struct {
	Name, Value string
	Depth       int
}

// maxDepth bounds the indentation of a part's lines.
const maxDepth = 4

// rowsOf returns the lines of a value as it is in JSON, in that order.
func rowsOf(v any) []partRow {
	text, err := json.Marshal(v)
	if err != nil {
		return []partRow{{Value: err.Error()}}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // large counts as they are
	rows, value := readRows(d, 0)
	if rows == nil {
		return []partRow{{Value: value}}
	}
	return rows
}

// readRows reads one value: the lines of an object or of a list with objects, or the text of
// another value.
func readRows(d *json.Decoder, depth int) (rows []partRow, value string) {
	token, _ := d.Token() // Marshal has written it
	delim, ok := token.(json.Delim)
	switch {
	case !ok && token == nil:
		return nil, "none"
	case !ok:
		return nil, fmt.Sprint(token)
	}
	var values []string
	for n := 1; d.More(); n++ {
		name := fmt.Sprint(n)
		if delim == '{' {
			key, _ := d.Token()
			name = wordsOf(fmt.Sprint(key))
		}
		below, text := readRows(d, min(depth+1, maxDepth))
		if below == nil && delim == '[' {
			values = append(values, text)
			continue
		}
		rows = append(append(rows, partRow{name, text, depth}), below...)
	}
	_, _ = d.Token()
	if rows == nil && values == nil {
		return nil, "none"
	}
	return rows, strings.Join(values, ", ")
}

var (
	snake = regexp.MustCompile(`^[a-z0-9]+(_[a-z0-9]+)+$`)
	camel = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	hump  = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// wordsOf returns the name of a field in words. Other names, such as a policy's, stay as they are.
func wordsOf(name string) string {
	switch {
	case snake.MatchString(name):
		return strings.ReplaceAll(name, "_", " ")
	case camel.MatchString(name):
		return strings.ToLower(hump.ReplaceAllString(name, "$1 $2"))
	}
	return name
}
