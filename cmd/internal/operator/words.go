package operator

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// Printable returns text unchanged if a terminal can show it, and quoted otherwise.
func Printable(text string) string {
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// Key returns text as a key: one in quotes may have escapes, as Printable writes them.
func Key(text string) string {
	if unquoted, err := strconv.Unquote(text); err == nil && strings.HasPrefix(text, `"`) {
		return unquoted
	}
	return text
}

// When returns an instant in words, with its distance from now.
func When(instant, now time.Time) string {
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

// LimitTexts returns limits in words.
func LimitTexts(limits []quota.Limit) string {
	var list []string
	for _, l := range limits {
		list = append(list, LimitText(l))
	}
	return strings.Join(list, ", ")
}

// LimitText returns a limit in words, as quota.ParseLimit reads it.
func LimitText(l quota.Limit) string {
	text, err := l.MarshalText()
	if err != nil {
		return l.String()
	}
	return string(text)
}

// Holds returns the content of an override in words.
func Holds(v *policies.Override) string {
	var list []string
	switch {
	case v.Blocked:
		list = append(list, "blocked")
	case v.Unlimited:
		list = append(list, "unlimited")
	case len(v.Limits) > 0:
		list = append(list, LimitTexts(v.Limits))
	}
	if v.ParentKey != "" {
		list = append(list, "parent "+Printable(v.ParentKey))
	}
	return strings.Join(list, "; ")
}

func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// Hash returns the first 96 bits of a SHA-256 of a key, as the page for operators and logs show it
// in place of the key.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}
