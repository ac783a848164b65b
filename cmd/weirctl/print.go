package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weir-go/weir/cmd/internal/operator"
)

// safe writes text with escapes in place of what is not printable, so that stored and foreign
// text can't steer the operator's terminal. An escape is JSON's, for printJSON.
type safe struct{ io.Writer }

func (w safe) Write(text []byte) (int, error) {
	escaped := make([]byte, 0, len(text))
	for remainder := text; len(remainder) > 0; {
		r, size := utf8.DecodeRune(remainder)
		switch {
		case r == utf8.RuneError && size == 1:
			escaped = fmt.Appendf(escaped, `\x%02x`, remainder[0])
		case r == '\n' || strconv.IsPrint(r):
			escaped = append(escaped, remainder[:size]...)
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				escaped = fmt.Appendf(escaped, `\u%04x`, unit)
			}
		}
		remainder = remainder[size:]
	}
	if _, err := w.Writer.Write(escaped); err != nil {
		return 0, err
	}
	return len(text), nil
}

// printJSON writes v as one JSON value.
func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table writes rows in columns, under a head.
type table struct {
	w   *tabwriter.Writer
	err error
}

func newTable(out io.Writer, head ...any) *table {
	t := &table{w: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	t.row(head...)
	return t
}

func (t *table) row(cells ...any) {
	var line strings.Builder
	for _, c := range cells {
		cell := fmt.Sprint(c)
		if cell != "" {
			cell = operator.Printable(cell) // it must not begin a row of its own
		}
		line.WriteString(cell + "\t")
	}
	_, err := fmt.Fprintln(t.w, strings.TrimSuffix(line.String(), "\t"))
	t.err = cmp.Or(t.err, err)
}

func (t *table) flush() error { return cmp.Or(t.err, t.w.Flush()) }
