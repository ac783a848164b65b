package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weir-go/weir/throttler/quota"
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
			cell = printable(cell) // it must not begin a row of its own
		}
		line.WriteString(cell + "\t")
	}
	_, err := fmt.Fprintln(t.w, strings.TrimSuffix(line.String(), "\t"))
	t.err = cmp.Or(t.err, err)
}

func (t *table) flush() error { return cmp.Or(t.err, t.w.Flush()) }

// printable returns text unchanged if a terminal can show it, and quoted otherwise.
func printable(text string) string {
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// when returns an instant in words, with its distance from now.
func when(instant, now time.Time) string {
	if instant.IsZero() {
		return "-"
	}
	d := instant.Sub(now).Round(time.Second).Abs()
	text, far := instant.UTC().Format("2006-01-02 15:04:05Z"), d.String()
	if days := d / (24 * time.Hour); days > 1 {
		far = fmt.Sprintf("%d days", days)
	}
	if instant.Before(now) {
		return fmt.Sprintf("%s (%s ago)", text, far)
	}
	return fmt.Sprintf("%s (in %s)", text, far)
}

// limitTexts returns limits in words.
func limitTexts(limits []quota.Limit) string {
	var list []string
	for _, l := range limits {
		list = append(list, textOf(l))
	}
	return strings.Join(list, ", ")
}

func textOf(l quota.Limit) string {
	text, err := l.MarshalText()
	if err != nil {
		return l.String()
	}
	return string(text)
}
