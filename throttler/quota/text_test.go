package quota

import (
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

var (
	_ encoding.TextMarshaler   = Algorithm(0)
	_ encoding.TextUnmarshaler = new(Algorithm)
	_ encoding.TextMarshaler   = Limit{}
	_ encoding.TextUnmarshaler = new(Limit)
)

func TestAlgorithmsAsText(t *testing.T) {
	for _, a := range Algorithms() {
		text, err := a.MarshalText()
		if err != nil || string(text) != a.String() {
			t.Errorf("%v is %q, %v", a, text, err)
		}
		var back Algorithm
		if err := back.UnmarshalText(text); err != nil || back != a {
			t.Errorf("%q is read as %v, %v", text, back, err)
		}
	}
	if text, err := Algorithm(200).MarshalText(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "algorithm is Algorithm(200); it must be one of") {
		t.Errorf("no algorithm is %q, %v", text, err)
	}
	a := TokenBucket
	if err := a.UnmarshalText([]byte("gcra")); !errors.Is(err, ErrInvalid) || a != TokenBucket {
		t.Errorf("gcra is read as %v, %v", a, err)
	}
}

func TestLimitsAsText(t *testing.T) {
	for text, want := range map[string]Limit{
		"10 per 1m":                           {Quota: 10, Window: time.Minute},
		"1 per 1ms":                           {Quota: 1, Window: time.Millisecond},
		"5000 per 1h sliding-window":          {Quota: 5000, Window: time.Hour, Algorithm: SlidingWindow},
		"5000 per 1d aligned":                 {Quota: 5000, Window: day, Aligned: true},
		"3 per 2d1h10m":                       {Quota: 3, Window: 2*day + time.Hour + 10*time.Minute},
		"3 per 1h0m5s":                        {Quota: 3, Window: time.Hour + 5*time.Second},
		"10 per 1s token-bucket burst 30":     {Quota: 10, Window: time.Second, Algorithm: TokenBucket, Burst: 30},
		"10 per 10h leaky-bucket max-wait 2s": {Quota: 10, Window: 10 * time.Hour, Algorithm: LeakyBucket, MaxWait: 2 * time.Second},
	} {
		var l Limit
		if err := l.UnmarshalText([]byte(text)); err != nil || l != want {
			t.Errorf("%q is read as %v, %v; want %v", text, l, err, want)
		}
		if got, err := want.MarshalText(); err != nil || string(got) != text {
			t.Errorf("%v is %q, %v; want %q", want, got, err, text)
		}
	}
	if l, err := ParseLimit("  10  per 60s fixed-window "); err != nil || l != (Limit{Quota: 10, Window: time.Minute}) {
		t.Errorf("got %v, %v", l, err)
	}
	for text, want := range map[string]Limit{
		"60 per hour": {Quota: 60, Window: time.Hour}, "60/hour": {Quota: 60, Window: time.Hour}, "60 / h": {Quota: 60, Window: time.Hour}, "60/1h": {Quota: 60, Window: time.Hour},
		"60 per 15m": {Quota: 60, Window: 15 * time.Minute}, "60 per 15 minutes": {Quota: 60, Window: 15 * time.Minute}, "60/15 m": {Quota: 60, Window: 15 * time.Minute},
		"5/s token-bucket burst 9": {Quota: 5, Window: time.Second, Algorithm: TokenBucket, Burst: 9}, "5 per second aligned": {Quota: 5, Window: time.Second, Aligned: true},
		"5 per 1 day": {Quota: 5, Window: day}, "5 per 2 weeks": {Quota: 5, Window: 14 * day}, "5/2w": {Quota: 5, Window: 14 * day}, "5 per 1w12h": {Quota: 5, Window: 7*day + 12*time.Hour},
		"5/day": {Quota: 5, Calendar: Calendar{Period: Day}}, "5 per d": {Quota: 5, Calendar: Calendar{Period: Day}}, "5/w in Europe/Berlin": {Quota: 5, Calendar: Calendar{Period: Week, Zone: "Europe/Berlin"}},
		"5 per week from day 7 in UTC":           {Quota: 5, Calendar: Calendar{Period: Week, Zone: "UTC", Day: 7}},
		"5 / month in Europe/Berlin from day 31": {Quota: 5, Calendar: Calendar{Period: Month, Zone: "Europe/Berlin", Day: 31}},
	} {
		if l, err := ParseLimit(text); err != nil || l != want {
			t.Errorf("%q is read as %v, %v; want %v", text, l, err, want)
		}
	}
	var all []Limit
	if err := json.Unmarshal([]byte(`["10 per 1m", "2 per 1s"]`), &all); err != nil || len(all) != 2 {
		t.Errorf("as JSON: %v, %v", all, err)
	}
}

func TestTextThatIsNoLimit(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "must be a quota, per, and a window, such as 10 per 1m",
		"10":                                 "such as 10 per 1m",
		"10 // 1m":                           `window is "/"; it must be`,
		"10 /":                               "such as 10 per 1m",
		"10per 1m":                           "such as 10 per 1m",
		"10 per":                             "such as 10 per 1m",
		"10 per minutes":                     `window is "minutes"; it must be`,
		"10 per days":                        `window is "days"; it must be`,
		"10 per 2 months":                    `window is "2 months"; it must be a time`,
		"10 per year":                        `window is "year"; it must be a time`,
		"10 per 2 minute-s":                  `window is "2 minute-s"`,
		"10 per 0 minutes":                   `window is "0"`,
		"10 per 1m minutes":                  `"minutes" is unknown; after the window there may be`,
		"10 per 53 weeks":                    "window is 8904h0m0s; it must be from 1ms to 8784h0m0s (366 days)",
		"ten per 1m":                         `quota is "ten"; it must be a whole number from 1 to 9007199254740992 (2^53)`,
		"010 per 1m":                         `quota is "010"; it must be a whole number from 1 to 9007199254740992 (2^53)`,
		"-1 per 1m":                          `quota is "-1"; it must be a whole number from 1 to 9007199254740992 (2^53)`,
		"99999999999999999999 per 1m":        `quota is "99999999999999999999"; it must be a whole number from 1 to 9007199254740992 (2^53)`,
		"10 per 60":                          `window is "60"; it must be`,
		"10 per -1m":                         `window is "-1m"`,
		"10 per 1m gcra":                     `"gcra" is unknown; after the window there may be fixed-window, sliding-window`,
		"10 per 1m token-bucket burst":       `burst is ""; it must be a whole number`,
		"10 per 1m token-bucket burst 0":     `burst is "0"; it must be a whole number`,
		"10 per 1m leaky-bucket max-wait 2":  `max-wait is "2"; it must be a time with its unit, such as 2s`,
		"10 per 1m aligned aligned":          `aligned is there twice; it must be there once`,
		"10 per 1m token-bucket sliding-log": `an algorithm is there twice; it must be there once`,
		"60 per fortnight":                   `limit is "60 per fortnight": window is "fortnight"; it must be a time, such as 50ms, 1m or 1d`,
		"10 per 1m from day 7":               `"from" is unknown; after the window there may be`,
		"10 per week from sunday":            `from is "sunday"; it must be a day of a month from 1 to 31, or of a week from 1, a Monday, to 7`,
		"10 per month from day 32":           "calendar's day is 32, of a month",
		"10 per month from day x":            `from is "day x"; it must be a day`,
		"10 per month from day":              `from is "day"; it must be a day`,
		"10 per day in":                      "the time zone after in is missing",
		"10 per day in Europe/Berlim":        `calendar's zone is "Europe/Berlim"`,
		"10 per 1m burst 20":                 "burst is 20; only a token-bucket or a leaky-bucket has one, not a fixed-window",
		"10 per 999d":                        "window is 23976h0m0s; it must be from 1ms to 8784h0m0s (366 days)",
		"10 per 1us":                         "window is 1µs; it must be from 1ms",
	} {
		l := Limit{Quota: 7}
		err := l.UnmarshalText([]byte(text))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) || text != "" && !strings.Contains(err.Error(), text) || l != (Limit{Quota: 7}) {
			t.Errorf("%q is read as %v, %v; want %q", text, l, err, want)
		}
	}
	if text, err := (Limit{Quota: 1}).MarshalText(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a limit without a window is %q, %v", text, err)
	}
}

func TestWindows(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1d": day, "366d": 366 * day, "1d12h": 36 * time.Hour, "90s": 90 * time.Second, "1.5h": 90 * time.Minute, "2w": 14 * day, "1w1h": 169 * time.Hour,
		"0d": 0, "01d": 0, "d": 0, "1.5d": 0, "1D": 0, "w": 0, "1w2d": 0, "-1d": 0, "1d24h": 0, "1d-1h": 0, "1d0s": 0, "100000d": 0, "": 0, "0s": 0, "60": 0,
	} {
		if d, err := ParseWindow(text); d != want || (err == nil) != (want > 0) || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%q is read as %v, %v; want %v", text, d, err, want)
		}
	}
}

// FuzzLimit checks that a limit's text is parsed as the same limit.
func FuzzLimit(f *testing.F) {
	for _, text := range []string{"10 per 1m", "60/hour", "5 per 2 weeks", "5/d in UTC", "5000 per 1d12h aligned", "3 per 1.5s token-bucket burst 30", "3 per 1h0m1s leaky-bucket max-wait 1h0m0.5s"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLimit(text)
		if err != nil {
			return
		}
		again, err := l.MarshalText()
		if err != nil {
			t.Fatalf("%q is read as %v, whose text is wrong: %v", text, l, err)
		}
		if back, err := ParseLimit(string(again)); err != nil || back != l {
			t.Errorf("%q is read as %v, and its text %q as %v, %v", text, l, again, back, err)
		}
	})
}

func TestPoliciesAsText(t *testing.T) {
	for text, want := range map[string]Policy{
		"core: 60 per hour": {Name: "core", Limits: []Limit{{Quota: 60, Window: time.Hour}}},
		" v1:core :20/minute,  500 per day in UTC ": {Name: "v1:core", Limits: []Limit{
			{Quota: 20, Window: time.Minute}, {Quota: 500, Calendar: Calendar{Period: Day, Zone: "UTC"}},
		}},
		"model: 2000 tokens per minute, 9 per s": {Name: "model", Unit: Tokens, Limits: []Limit{{Quota: 2000, Window: time.Minute}, {Quota: 9, Window: time.Second}}},
		"at-once: 3 per 30s in-flight":           {Name: "at-once", Limits: []Limit{{Quota: 3, Window: 30 * time.Second, Algorithm: InFlight}}},
		"core: 5 requests per 15 minutes":        {Name: "core", Limits: []Limit{{Quota: 5, Window: 15 * time.Minute}}},
	} {
		if p, err := ParsePolicy(text); err != nil || !reflect.DeepEqual(*p, want) {
			t.Errorf("%q is read as %+v, %v; want %+v", text, p, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                         `policy is "", without a colon; it must be a name, a colon and limits, such as core: 60 per hour`,
		"60 per hour":              "without a colon",
		": 60 per hour":            `policy name is ""; it must be 1 to 64 letters`,
		"my core: 60 per hour":     `policy name is "my core"; it must be`,
		"core:":                    `policy "core": limit is ""; it must be a quota`,
		"core: 60 per hour,":       `policy "core": limit is ""; it must be a quota`,
		"core: 60":                 `policy "core": limit is " 60"; it must be a quota`,
		"core: 60 per fortnight":   `limit is " 60 per fortnight": window is "fortnight"; it must be`,
		"core: 1.5 per s":          `limit is " 1.5 per s": quota is "1.5"; it must be`,
		"core: 5-M":                `limit is " 5-M"; it must be`,
		"core: 60 tokenz per hour": `policy "core": unit is "tokenz"; it must be one of ["requests" "tokens"`,
		"core: 60 tokens per hour, 5 requests per s": `policy "core" has limits of tokens and of requests; it must have one unit`,
		"core: 60 per hour, 70 per hour":             "limits 0 and 1 are both a fixed-window of 1h",
	} {
		if p, err := ParsePolicy(text); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read as %v, %v; want %q", text, p, err, want)
		}
	}
}
