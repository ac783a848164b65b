package quota

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Calendar makes a FixedWindow's windows the days, weeks or months of a time zone, the same
// ones for all keys. A day of 23 or 25 hours is one window. The zero value is no calendar.
type Calendar struct {
	// Zone is a name of the IANA time zone database, such as "Europe/Berlin". If empty, UTC.
	// A program for hosts without that database imports time/tzdata.
	Zone string

	// Period is the length of the windows.
	Period Period

	// Day is the day on which a Month begins, 1 to 31, like a billing period, or a Week, from 1
	// for Monday to 7 for Sunday. In a calendar month that is shorter, a Month begins on the
	// last day. If zero, 1. A Day has no Day.
	Day uint8

	// Hour and Minute are the time of day at which the windows begin: 3 and 0 for days from three
	// to three. If clocks skip it, windows begin when they do; if they show it twice, at the second.
	Hour, Minute uint8
}

// Period is a length of time in a calendar.
type Period uint8

// The periods. A week begins on a Monday, unless the Calendar has a Day.
const (
	Day Period = 1 + iota
	Week
	Month
)

// periods has the name, and the days of the shortest and the longest of each Period.
var periods = [...]struct {
	name              string
	shortest, longest time.Duration
}{
	Day:   {"day", day, day},
	Week:  {"week", 7 * day, 7 * day},
	Month: {"month", 28 * day, 31 * day},
}

// clockChange is how much longer or shorter a period may be: clocks in Antarctica/Troll change
// by two hours.
const clockChange = 2 * time.Hour

// String returns "day", "week" or "month".
func (p Period) String() string {
	if p > 0 && int(p) < len(periods) {
		return periods[p].name
	}
	return fmt.Sprintf("Period(%d)", uint8(p))
}

// Shortest returns the shortest length of p, when clocks are set ahead: 28 days less two
// hours for a Month. It is 0 if p is not a period.
func (p Period) Shortest() time.Duration {
	if p > 0 && int(p) < len(periods) {
		return periods[p].shortest - clockChange
	}
	return 0
}

// parsePeriod returns the period of that name.
func parsePeriod(name string) (Period, bool) {
	for p := range periods {
		if p > 0 && periods[p].name == name {
			return Period(p), true
		}
	}
	return 0, false
}

// IsZero reports whether c is the zero Calendar.
func (c Calendar) IsZero() bool { return c.Period == 0 && c.Day == 0 && c.Zone == "" } // field by field: == calls a function

// String returns c as in a limit's text: "month in Europe/Berlin from day 31 03:00".
func (c Calendar) String() string {
	var b strings.Builder
	b.WriteString(c.Period.String())
	if c.Zone != "" {
		b.WriteString(" in " + c.Zone)
	}
	if c.Day != 0 || c.Hour != 0 || c.Minute != 0 {
		b.WriteString(" from")
	}
	if c.Day != 0 {
		fmt.Fprintf(&b, " day %d", c.Day)
	}
	if c.Hour != 0 || c.Minute != 0 {
		fmt.Fprintf(&b, " %02d:%02d", c.Hour, c.Minute)
	}
	return b.String()
}

// End returns the end, in UTC, of the window that is open at now, for a valid c: the first
// instant of the next day, week or month. If clocks skip its time, that is when they skip it.
func (c Calendar) End(now time.Time) time.Time {
	zone, err := location(c.Zone)
	if err != nil {
		zone = time.UTC // Validate rejects such a zone
	}
	today := dateOf(shown(now, zone).Add(-c.after()))
	// If clocks are set back over the time, now may be on a day that begins again.
	last, next := c.bounds(today)
	if again := start(last.Add(c.after()), zone); today.Equal(last) && again.After(now) {
		return again.UTC()
	}
	return start(next.Add(c.after()), zone).UTC()
}

// after returns the time after midnight at which windows begin.
func (c Calendar) after() time.Duration {
	return time.Duration(c.Hour)*time.Hour + time.Duration(c.Minute)*time.Minute
}

// bounds returns the first dates of today's window and of the next one. Dates are midnights
// in UTC.
func (c Calendar) bounds(today time.Time) (last, next time.Time) {
	switch c.Period {
	case Week:
		last = today.AddDate(0, 0, -(int(today.Weekday())+7-max(int(c.Day), 1))%7)
		return last, last.AddDate(0, 0, 7)
	case Month:
		if begins := c.inMonth(today, 0); begins.After(today) {
			return c.inMonth(today, -1), begins
		}
		return c.inMonth(today, 0), c.inMonth(today, 1)
	default: // Day
		return today, today.AddDate(0, 0, 1)
	}
}

// inMonth returns the first date of the window that begins in today's month or, if later is
// not 0, that many months after it.
func (c Calendar) inMonth(today time.Time, later int) time.Time {
	first := time.Date(today.Year(), today.Month()+time.Month(later), 1, 0, 0, 0, 0, time.UTC)
	last := first.AddDate(0, 1, -1).Day()
	return first.AddDate(0, 0, min(max(int(c.Day), 1), last)-1)
}

func dateOf(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// shown returns what clocks in zone show at t, as a time in UTC.
func shown(t time.Time, zone *time.Location) time.Time {
	_, ahead := t.In(zone).Zone()
	return t.UTC().Add(time.Duration(ahead) * time.Second)
}

// start returns the instant from which clocks in zone show at, a time in UTC, or later. If they skip
// it, that is when they do; if they are set back over it, it is when they show it again.
func start(at time.Time, zone *time.Location) time.Time {
	t := time.Date(at.Year(), at.Month(), at.Day(), at.Hour()+12, at.Minute(), 0, 0, zone)
	for shown(t, zone).Before(at) { // the zone has left out the day
		_, t = t.ZoneBounds()
	}
	for {
		begins := t.Add(at.Sub(shown(t, zone)))
		changed, _ := t.ZoneBounds()
		if changed.IsZero() || changed.Before(begins) {
			return begins
		}
		before := changed.Add(-time.Second)
		if shown(before, zone).Before(at) {
			return changed
		}
		t = before
	}
}

// locations contains the zones that were loaded, by name: *time.Location.
var locations sync.Map

// location returns the zone of that name. Local is an error: it differs between hosts.
func location(name string) (*time.Location, error) {
	if location, ok := locations.Load(name); ok {
		return location.(*time.Location), nil
	}
	if name == "Local" {
		return nil, fmt.Errorf("unknown time zone %s", name)
	}
	zone, err := time.LoadLocation(name)
	if err == nil {
		locations.Store(name, zone)
	}
	return zone, err
}

// problemIn describes an error of c, which is not zero, in l. It returns "" if c is valid.
func (c Calendar) problemIn(l *Limit) string {
	if l.Window != 0 || l.Aligned || !l.Algorithm.traits().aligned {
		return fmt.Sprintf("calendar is %v, of a %v with a window of %v, aligned %t; only a fixed-window has one, in place of window and aligned", c, l.Algorithm, l.Window, l.Aligned)
	}
	if c.Period == 0 || int(c.Period) >= len(periods) {
		return fmt.Sprintf("calendar's period is %v; it must be a day, a week or a month", c.Period)
	}
	if days := [...]uint8{Day: 0, Week: 7, Month: 31}[c.Period]; c.Day > days {
		return fmt.Sprintf("calendar's day is %d, of a %v; it must be from 1 to 31, of a month, from 1, a Monday, to 7, of a week, or 0", c.Day, c.Period)
	}
	if c.Hour > 23 || c.Minute > 59 {
		return fmt.Sprintf("calendar's time of day is %02d:%02d; it must be from 00:00 to 23:59", c.Hour, c.Minute)
	}
	if _, err := location(c.Zone); err != nil {
		return fmt.Sprintf("calendar's zone is %q: %v; it must be a name of the IANA database that this host has, such as Europe/Berlin", c.Zone, err)
	}
	return ""
}
