package quota

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestUnitsAsText(t *testing.T) {
	for u, want := range map[Unit]string{Requests: "requests", Tokens: "tokens", InputTokens: "input-tokens", OutputTokens: "output-tokens"} {
		text, err := u.MarshalText()
		if err != nil || string(text) != want {
			t.Errorf("%d is %q, %v; want %q", u, text, err, want)
		}
		back := Unit(9)
		if err := back.UnmarshalText(text); err != nil || back != u {
			t.Errorf("%q is read as %v, %v", text, back, err)
		}
	}
	u := Tokens
	if err := u.UnmarshalText([]byte("token")); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `unit is "token"; it must be one of ["requests"`) || u != Tokens {
		t.Errorf("token is read as %v, %v", u, err)
	}
	if _, err := Unit(9).MarshalText(); !errors.Is(err, ErrInvalid) {
		t.Errorf("no unit is text, %v", err)
	}
	p := &Policy{Name: "p", Limits: []Limit{{Quota: 1, Window: time.Second}}, Unit: 9}
	if err := p.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `policy "p": unit is Unit(9); it must be one of`) {
		t.Errorf("a policy of no unit: %v", err)
	}
}
