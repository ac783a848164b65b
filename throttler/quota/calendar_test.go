package quota

import (
	"encoding"
	"errors"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // for hosts without it

	"github.com/weir-go/weir/internal/testkit/testseed"
)

var (
	_ encoding.TextMarshaler   = Calendar{}
	_ encoding.TextUnmarshaler = new(Calendar)
)

func TestCalendarsEnd(t *testing.T) {
	const berlin, sao, beirut, johns, havana, apia = "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "America/St_Johns", "America/Havana", "Pacific/Apia"
	for _, test := range []struct {
		calendar  Calendar
		now, want string // now and the end of its window
		lasts     time.Duration
	}{
		{Calendar{Period: Day}, "2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z", day},
		{Calendar{Period: Day}, "2024-02-29T23:59:59.999Z", "2024-03-01T00:00:00Z", time.Millisecond},
		{Calendar{Period: Day}, "2023-02-28T12:00:00Z", "2023-03-01T00:00:00Z", day / 2},
		{Calendar{Period: Day, Zone: berlin}, "2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00", 23 * time.Hour},
		{Calendar{Period: Day, Zone: berlin}, "2024-10-27T00:00:00+02:00", "2024-10-28T00:00:00+01:00", 25 * time.Hour},
		{Calendar{Period: Day, Zone: "Antarctica/Troll"}, "2024-03-31T00:00:00Z", "2024-04-01T00:00:00+02:00", 22 * time.Hour},
		// Clocks go from midnight to one, so that day begins at one.
		{Calendar{Period: Day, Zone: sao}, "2018-11-03T00:00:00-03:00", "2018-11-04T01:00:00-02:00", day},
		{Calendar{Period: Day, Zone: sao}, "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00", 23 * time.Hour},
		{Calendar{Period: Month, Day: 4, Zone: sao}, "2018-11-03T23:59:59-03:00", "2018-11-04T01:00:00-02:00", 0},
		{Calendar{Period: Day, Zone: beirut}, "2024-03-30T12:00:00+02:00", "2024-03-31T01:00:00+03:00", 0},
		// They are set back from midnight to eleven: the day that ends has 25 hours.
		{Calendar{Period: Day, Zone: sao}, "2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00", 25 * time.Hour},
		{Calendar{Period: Day, Zone: beirut}, "2024-10-26T23:30:00+02:00", "2024-10-27T00:00:00+02:00", 0},
		// From one to midnight: the day begins at the first.
		{Calendar{Period: Day, Zone: havana}, "2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00", 25 * time.Hour},
		{Calendar{Period: Day, Zone: havana}, "2024-11-03T00:00:00-05:00", "2024-11-04T00:00:00-05:00", 0},
		// From a minute past midnight to the day before: it begins at the second midnight.
		{Calendar{Period: Day, Zone: johns}, "2010-11-06T12:00:00-02:30", "2010-11-07T00:00:00-03:30", 0},
		{Calendar{Period: Day, Zone: johns}, "2010-11-07T00:00:30-02:30", "2010-11-07T00:00:00-03:30", 0},
		{Calendar{Period: Day, Zone: johns}, "2010-11-06T23:01:00-03:30", "2010-11-07T00:00:00-03:30", 0},
		{Calendar{Period: Day, Zone: johns}, "2010-11-07T00:00:00-03:30", "2010-11-08T00:00:00-03:30", day},
		// A day that never was.
		{Calendar{Period: Day, Zone: apia}, "2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", 0},
		{Calendar{Period: Month, Day: 30, Zone: apia}, "2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", 0},

		// From three to three, also on days when clocks change from two to three or back.
		{Calendar{Period: Day, Hour: 3}, "2024-02-28T02:59:59Z", "2024-02-28T03:00:00Z", time.Second},
		{Calendar{Period: Day, Hour: 3}, "2024-02-28T03:00:00Z", "2024-02-29T03:00:00Z", day},
		{Calendar{Period: Day, Hour: 3, Zone: berlin}, "2024-03-30T03:00:00+01:00", "2024-03-31T03:00:00+02:00", 23 * time.Hour},
		{Calendar{Period: Day, Hour: 3, Zone: berlin}, "2024-10-26T03:00:00+02:00", "2024-10-27T03:00:00+01:00", 25 * time.Hour},
		{Calendar{Period: Day, Hour: 3, Zone: berlin}, "2024-10-27T02:59:59+02:00", "2024-10-27T03:00:00+01:00", 0},
		// Clocks skip half past two, and show it twice.
		{Calendar{Period: Day, Hour: 2, Minute: 30, Zone: berlin}, "2024-03-30T02:30:00+01:00", "2024-03-31T03:00:00+02:00", 23*time.Hour + 30*time.Minute},
		{Calendar{Period: Day, Hour: 2, Minute: 30, Zone: berlin}, "2024-10-26T02:30:00+02:00", "2024-10-27T02:30:00+01:00", 25 * time.Hour},
		{Calendar{Period: Day, Hour: 2, Minute: 30, Zone: berlin}, "2024-10-27T02:45:00+02:00", "2024-10-27T02:30:00+01:00", 0},
		{Calendar{Period: Day, Hour: 2, Minute: 30, Zone: berlin}, "2024-10-27T02:15:00+01:00", "2024-10-27T02:30:00+01:00", 0},
		{Calendar{Period: Day, Hour: 2, Minute: 30, Zone: berlin}, "2024-10-27T02:30:00+01:00", "2024-10-28T02:30:00+01:00", day},
		{Calendar{Period: Day, Hour: 12, Zone: apia}, "2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", 12 * time.Hour},
		{Calendar{Period: Week, Hour: 23, Minute: 59, Day: 7}, "2024-07-07T23:58:59Z", "2024-07-07T23:59:00Z", time.Second},
		{Calendar{Period: Month, Hour: 3, Day: 31}, "2023-02-28T02:59:59Z", "2023-02-28T03:00:00Z", time.Second},
		{Calendar{Period: Month, Hour: 3}, "2024-12-31T23:30:00Z", "2025-01-01T03:00:00Z", 0},

		{Calendar{Period: Week}, "2024-07-01T00:00:00Z", "2024-07-08T00:00:00Z", 7 * day}, // a Monday
		{Calendar{Period: Week}, "2024-07-07T23:59:59Z", "2024-07-08T00:00:00Z", 0},
		{Calendar{Period: Week, Day: 7}, "2024-07-07T00:00:00Z", "2024-07-14T00:00:00Z", 7 * day}, // a Sunday
		{Calendar{Period: Week, Day: 7}, "2024-07-06T23:59:59Z", "2024-07-07T00:00:00Z", time.Second},
		{Calendar{Period: Week, Day: 3, Zone: berlin}, "2024-07-02T12:00:00+02:00", "2024-07-03T00:00:00+02:00", 12 * time.Hour},
		{Calendar{Period: Week, Day: 1}, "2024-07-07T23:59:59Z", "2024-07-08T00:00:00Z", time.Second},
		{Calendar{Period: Week, Zone: berlin}, "2024-12-30T00:00:00+01:00", "2025-01-06T00:00:00+01:00", 7 * day},
		{Calendar{Period: Week, Zone: berlin}, "2024-03-25T00:00:00+01:00", "2024-04-01T00:00:00+02:00", 7*day - time.Hour},

		{Calendar{Period: Month}, "2024-01-31T12:00:00Z", "2024-02-01T00:00:00Z", 0},
		{Calendar{Period: Month}, "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z", 29 * day},
		{Calendar{Period: Month, Zone: berlin}, "2024-12-31T23:30:00Z", "2025-01-31T23:00:00Z", 0}, // it is January there
		{Calendar{Period: Month, Day: 31}, "2023-01-31T00:00:00Z", "2023-02-28T00:00:00Z", 28 * day},
		{Calendar{Period: Month, Day: 31}, "2023-02-28T00:00:00Z", "2023-03-31T00:00:00Z", 31 * day},
		{Calendar{Period: Month, Day: 31}, "2024-02-28T23:59:59Z", "2024-02-29T00:00:00Z", 0},
		{Calendar{Period: Month, Day: 31}, "2024-02-29T00:00:00Z", "2024-03-31T00:00:00Z", 31 * day},
		{Calendar{Period: Month, Day: 31}, "2024-03-31T00:00:00Z", "2024-04-30T00:00:00Z", 30 * day},
		{Calendar{Period: Month, Day: 30}, "2023-12-30T00:00:00Z", "2024-01-30T00:00:00Z", 31 * day},
		{Calendar{Period: Month, Day: 15}, "2024-01-14T23:59:59Z", "2024-01-15T00:00:00Z", 0},
		{Calendar{Period: Month, Day: 29}, "1900-02-15T00:00:00Z", "1900-02-28T00:00:00Z", 0}, // no leap year
	} {
		now, want := instant(t, test.now), instant(t, test.want)
		if got := test.calendar.End(now); !got.Equal(want) {
			t.Errorf("%v at %s ends at %v, want %v", test.calendar, test.now, got, want)
		}
		if d := want.Sub(now); test.lasts != 0 && d != test.lasts {
			t.Errorf("%v at %s lasts %v, want %v", test.calendar, test.now, d, test.lasts)
		}
	}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// A window ends after now, and its end is the same for all instants in it. The next window
// begins there, and neither is shorter than Length.
func TestCalendarsFollowEachOther(t *testing.T) {
	rng := testseed.Rand(t, 0)
	zones := []string{
		"", "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "America/St_Johns", "America/Havana", "Pacific/Apia", "Australia/Lord_Howe",
		"Antarctica/Troll", "Asia/Kathmandu", "Africa/Cairo", "America/Nuuk", "Asia/Gaza", "Atlantic/Azores", "America/Asuncion", "Asia/Tehran",
	}
	for range 3000 {
		l := Limit{Quota: 1, Calendar: Calendar{Period: Period(1 + rng.IntN(3)), Zone: zones[rng.IntN(len(zones))]}}
		switch l.Calendar.Period {
		case Month:
			l.Calendar.Day = uint8(rng.IntN(32))
		case Week:
			l.Calendar.Day = uint8(rng.IntN(8))
		default:
		}
		if rng.IntN(2) == 0 {
			l.Calendar.Hour, l.Calendar.Minute = uint8(rng.IntN(24)), uint8(rng.IntN(60))
		}
		now := time.Date(1995+rng.IntN(60), 1, 1, 0, 0, rng.IntN(366*86400), 0, time.UTC)
		end := l.Calendar.End(now)
		if !end.After(now) {
			t.Fatalf("%v at %v ends at %v", l, now, end)
		}
		between := now.Add(time.Duration(rng.Int64N(int64(end.Sub(now)))))
		if again := l.Calendar.End(between); !again.Equal(end) {
			t.Fatalf("%v at %v ends at %v, at %v at %v", l, now, end, between, again)
		}
		zone, _ := location(l.Calendar.Zone)
		after := -l.Calendar.after()
		if last, first := shown(end.Add(-1), zone).Add(after), shown(end, zone).Add(after); !dateOf(last).Before(dateOf(first)) {
			t.Fatalf("%v at %v ends within a day: %v, %v", l, now, last, first)
		}
		shortest := l.Length()
		if l.Calendar.Zone == "Pacific/Apia" {
			shortest -= day // it left out one in 2011
		}
		if next := l.Calendar.End(end); next.Sub(end) < shortest || next.Sub(end) > 31*day+2*time.Hour {
			t.Fatalf("%v: the window from %v to %v, at least %v", l, end, next, shortest)
		}
	}
}

func TestCalendarsAsText(t *testing.T) {
	for text, want := range map[string]Limit{
		"5 per day":                                    {Quota: 5, Calendar: Calendar{Period: Day}},
		"5 per week in Europe/Berlin":                  {Quota: 5, Calendar: Calendar{Period: Week, Zone: "Europe/Berlin"}},
		"5000 per month from day 31":                   {Quota: 5000, Calendar: Calendar{Period: Month, Day: 31}},
		"5 per day from 03:00":                         {Quota: 5, Calendar: Calendar{Period: Day, Hour: 3}},
		"5 per week in Europe/Berlin from day 7 23:59": {Quota: 5, Calendar: Calendar{Period: Week, Zone: "Europe/Berlin", Day: 7, Hour: 23, Minute: 59}},
		"5 per week in UTC from day 7":                 {Quota: 5, Calendar: Calendar{Period: Week, Day: 7, Zone: "UTC"}},
		"5 per month in UTC from day 1":                {Quota: 5, Calendar: Calendar{Period: Month, Day: 1, Zone: "UTC"}},
		"1 per month in America/New_York":              {Quota: 1, Calendar: Calendar{Period: Month, Zone: "America/New_York"}},
	} {
		l, err := ParseLimit(text)
		if err != nil || l != want {
			t.Errorf("%q is read as %v, %v; want %v", text, l, err, want)
		}
		if got, err := want.MarshalText(); err != nil || string(got) != text {
			t.Errorf("%v is %q, %v; want %q", want, got, err, text)
		}
		_, calendar, _ := strings.Cut(text, " per ")
		var c Calendar
		if err := c.UnmarshalText([]byte(calendar)); err != nil || c != want.Calendar {
			t.Errorf("%q is read as %v, %v", calendar, c, err)
		}
		if got, err := c.MarshalText(); err != nil || string(got) != calendar {
			t.Errorf("%v is %q, %v", c, got, err)
		}
	}
	for text, want := range map[string]string{
		"5 per month in":                      "the time zone after in is missing",
		"5 per month from day":                "from is \"day\"; it must be a day",
		"5 per day from 24:00":                "from is \"24:00\"; it must be a day of a month",
		"5 per day from 3":                    "a time of day, such as from 03:00, or both, as in from day 7 03:00",
		"5 per day from 03:00 day 7":          "\"day\" is unknown",
		"5 per day from day 1 03:00":          "calendar's day is 1, of a day",
		"5 per month from day 0":              "from is \"day 0\"; it must be a day",
		"5 per month from day 300":            "from is \"day 300\"; it must be a day of a month from 1 to 31",
		"5 per month from day 32":             "calendar's day is 32, of a month; it must be from 1 to 31",
		"5 per week from day 8":               "calendar's day is 8, of a week; it must be from 1 to 31, of a month, from 1, a Monday, to 7, of a week, or 0",
		"5 per day from day 1":                "calendar's day is 1, of a day; it must be",
		"5 per day in Europe/Atlantis":        `calendar's zone is "Europe/Atlantis": unknown time zone Europe/Atlantis; it must be a name of the IANA database`,
		"5 per day in Local":                  `calendar's zone is "Local"`,
		"5 per day in ../zone":                `calendar's zone is "../zone"`,
		"5 per day aligned":                   "only a fixed-window has one, in place of window and aligned",
		"5 per day sliding-log":               "calendar is day, of a sliding-log with a window of 0s, aligned false; only a fixed-window has one",
		"5 per year":                          "window is \"year\"; it must be a time",
		"5 per month burst 3":                 "burst is 3; only a",
		"5 per month in Europe/Berlin 1h":     "\"1h\" is unknown; after the window there may be",
		"5 per month in Europe/Berlin in UTC": "\"in\" is unknown",
	} {
		if l, err := ParseLimit(text); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read as %v, %v; want %q", text, l, err, want)
		}
	}
	for _, text := range []string{"", "1h", "month 3", "day in Nowhere"} {
		var c Calendar
		if err := c.UnmarshalText([]byte(text)); !errors.Is(err, ErrInvalid) || !c.IsZero() {
			t.Errorf("%q is read as %v, %v", text, c, err)
		}
	}
	both := Limit{Quota: 1, Window: time.Hour, Calendar: Calendar{Period: Day}}
	if problem := both.validate(); !strings.Contains(problem, "with a window of 1h0m0s") {
		t.Errorf("a window and a calendar: %q", problem)
	}
	if problem := (&Limit{Quota: 1, Calendar: Calendar{Zone: "UTC"}}).validate(); !strings.Contains(problem, "period is Period(0)") {
		t.Errorf("a zone without a period: %q", problem)
	}
}

func TestTimesOfDay(t *testing.T) {
	for _, c := range []Calendar{{Period: Day, Hour: 24}, {Period: Week, Minute: 60}} {
		if problem := (&Limit{Quota: 1, Calendar: c}).validate(); !strings.Contains(problem, "it must be from 00:00 to 23:59") {
			t.Errorf("%+v: %q", c, problem)
		}
	}
}

func TestCalendarsOfOnePolicy(t *testing.T) {
	limit := func(text string) Limit {
		l, err := ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	p := &Policy{Name: "p", Limits: []Limit{limit("5 per day"), limit("20 per week in Asia/Tokyo"), limit("50 per month"), limit("5 per 1m")}}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	p.Limits = append(p.Limits, limit("7 per month in Asia/Tokyo"))
	if err := p.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "limits 2 and 4 are both a fixed-window of month in Asia/Tokyo") {
		t.Error(err)
	}
	if warnings := p.Warnings(); warnings != nil {
		t.Error(warnings)
	}
}
