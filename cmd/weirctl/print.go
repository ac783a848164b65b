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
	"unicode/utf8"

	"github.com/weir-go/weir/throttler/quota"
)

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
		fmt.Fprintf(&line, "%v\t", c)
	}
	_, err := fmt.Fprintln(t.w, strings.TrimSuffix(line.String(), "\t"))
	t.err = cmp.Or(t.err, err)
}

func (t *table) flush() error { return cmp.Or(t.err, t.w.Flush()) }

// printable returns a key unchanged if a terminal can show it, and quoted otherwise.
func printable(key string) string {
	if key == "" || !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(key)
	}
	return key
}

// when returns an instant in words, with its distance from now.
func when(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	d := at.Sub(now).Round(time.Second).Abs()
	text, far := at.UTC().Format("2006-01-02 15:04:05Z"), d.String()
	if days := d / (24 * time.Hour); days > 1 {
		far = fmt.Sprintf("%d days", days)
	}
	if at.Before(now) {
		return fmt.Sprintf("%s (%s ago)", text, far)
	}
	return fmt.Sprintf("%s (in %s)", text, far)
}

// limitTexts returns limits in words.
func limitTexts(limits []quota.Limit) string {
	var all []string
	for _, l := range limits {
		all = append(all, textOf(l))
	}
	return strings.Join(all, ", ")
}

func textOf(l quota.Limit) string {
	text, err := l.MarshalText()
	if err != nil {
		return l.String()
	}
	return string(text)
}
