package quota

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/invalid"
)

// MarshalText returns the algorithm's name, or an error that wraps [ErrInvalid] if a is not
// an algorithm.
func (a Algorithm) MarshalText() ([]byte, error) {
	if a.traits().name == "" {
		return nil, invalid.Errorf("quota: algorithm is %v; it must be one of %q", a, algorithmNames())
	}
	return []byte(a.String()), nil
}

// UnmarshalText sets a to the algorithm that text names, as [ParseAlgorithm] does.
func (a *Algorithm) UnmarshalText(text []byte) error {
	parsed, err := ParseAlgorithm(string(text))
	if err == nil {
		*a = parsed
	}
	return err
}

const (
	limitForm  = "a quota, per, and a window, such as 10 per 1m, 10/hour, 10 per 30 days or 10 per month"
	windowForm = "a time, such as 50ms, 1m or 1d, a number and a unit up to weeks, such as 15 minutes, or a second, minute, hour, day, week or month"
)

// limitText is the quota of a limit and the words after per.
var limitText = regexp.MustCompile(`(?s)^\s*([^\s/]+)(?:\s+per\s+|\s*/\s*)(\S.*)$`)

// ParseLimit returns the limit that text describes: a quota and a window, as in
//
//	10 per 1m
//	10 per minute
//	10/s
//	60 per 15 minutes
//
// A window is a duration, as [ParseWindow] reads it, a number of seconds, minutes, hours, days
// or weeks, or a second, minute or hour. After it, in any order and if needed, come an algorithm,
// aligned, burst with its units, and max-wait with its time:
//
//	10 per 1m token-bucket burst 20
//	5000 per 1d aligned
//
// A day, a week or a month without a number is one of the calendar of a FixedWindow:
//
//	60/day
//	5000 per month in Europe/Berlin from day 31
//	5000 per day in Europe/Berlin from 03:00
//
// An error wraps [ErrInvalid]: text has another form, or the limit is not valid.
func ParseLimit(text string) (Limit, error) {
	var l Limit
	parts := limitText.FindStringSubmatch(text)
	if parts == nil {
		return Limit{}, invalid.Errorf("quota: limit is %q; it must be %s", text, limitForm)
	}
	problem := l.parse(parts[1], strings.Fields(parts[2]))
	if problem == "" {
		problem = l.validate()
	}
	if problem != "" {
		return Limit{}, invalid.Errorf("quota: limit is %q: %s", text, problem)
	}
	return l, nil
}

// parse sets l to a quota and the words after per, or returns what is wrong with them.
func (l *Limit) parse(units string, words []string) (problem string) {
	var err error
	if l.Quota, err = strconv.ParseInt(units, 10, 64); err != nil || !number.MatchString(units) {
		return fmt.Sprintf("quota is %q; it must be a whole number from 1 to %d (2^53)", units, int64(MaxQuota))
	}
	if l.Calendar, words, problem = parseCalendar(words); problem != "" {
		return problem
	}
	if l.Calendar.IsZero() {
		if l.Window, words, problem = parsePer(words); problem != "" {
			return problem
		}
	}
	options := make(map[string]bool)
	for len(words) > 0 {
		var option string
		if option, words, problem = l.parseOption(words); problem != "" {
			return problem
		}
		if options[option] {
			return option + " is there twice; it must be there once"
		}
		options[option] = true
	}
	return ""
}

// units are the units of a window, by their names in the singular.
var units = map[string]string{"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}

// parsePer reads a window from the front of words, and returns the remaining words.
func parsePer(words []string) (d time.Duration, tail []string, problem string) {
	text, tail := words[0], words[1:]
	shown := text
	switch unit := cmp.Or(units[text], text); {
	case unit == "s", unit == "m", unit == "h":
		text = "1" + unit
	case number.MatchString(text) && len(tail) > 0:
		unit, tail = tail[0], tail[1:]
		shown += " " + unit
		text += cmp.Or(units[strings.TrimSuffix(unit, "s")], unit)
	}
	d, err := ParseWindow(text)
	if err != nil {
		return 0, nil, fmt.Sprintf("window is %q; it must be %s", shown, windowForm)
	}
	return d, tail, ""
}

// parseOption reads an option, which may follow a limit's window, from the front of words,
// and returns its name and the remaining words.
func (l *Limit) parseOption(words []string) (option string, tail []string, problem string) {
	option, tail = words[0], words[1:]
	var err error
	switch option {
	case "aligned":
		l.Aligned = true
		return option, tail, ""
	case "burst", "max-wait":
		value := ""
		if len(tail) > 0 {
			value, tail = tail[0], tail[1:]
		}
		if option == "max-wait" {
			if l.MaxWait, err = ParseWindow(value); err != nil {
				problem = fmt.Sprintf("max-wait is %q; it must be a time with its unit, such as 2s", value)
			}
		} else if l.Burst, err = strconv.ParseInt(value, 10, 64); err != nil || !number.MatchString(value) {
			problem = fmt.Sprintf("burst is %q; it must be a whole number from 1 to %d (2^53)", value, int64(MaxQuota))
		}
		return option, tail, problem
	}
	if l.Algorithm, err = ParseAlgorithm(option); err != nil {
		problem = fmt.Sprintf("%q is unknown; after the window there may be %s, aligned, burst 20, max-wait 2s and, after day, week or month, in a time zone and from day 31 or 03:00", option, strings.Join(algorithmNames(), ", "))
	}
	return "an algorithm", tail, problem
}

// MarshalText returns the text that [ParseLimit] reads, or an error that wraps [ErrInvalid]
// if l is not valid.
func (l Limit) MarshalText() ([]byte, error) {
	if problem := l.validate(); problem != "" {
		return nil, invalid.Errorf("quota: limit: %s", problem)
	}
	text := fmt.Appendf(nil, "%d per ", l.Quota)
	if l.Calendar.IsZero() {
		text = append(text, FormatWindow(l.Window)...)
	} else {
		text = append(text, l.Calendar.String()...)
	}
	if l.Algorithm != FixedWindow {
		text = fmt.Appendf(text, " %v", l.Algorithm)
	}
	if l.Aligned {
		text = append(text, " aligned"...)
	}
	if l.Burst != 0 {
		text = fmt.Appendf(text, " burst %d", l.Burst)
	}
	if l.MaxWait != 0 {
		text = fmt.Appendf(text, " max-wait %s", FormatWindow(l.MaxWait))
	}
	return text, nil
}

// parseCalendar reads a calendar from the front of words, and returns the remaining words. It
// returns all words if they begin with no period.
func parseCalendar(words []string) (c Calendar, tail []string, problem string) {
	period := words[0]
	for name, letter := range units {
		if period == letter {
			period = name
		}
	}
	var ok bool
	if c.Period, ok = parsePeriod(period); !ok {
		return Calendar{}, words, ""
	}
	for words = words[1:]; len(words) > 0; {
		switch {
		case words[0] == "in" && c.Zone == "" && len(words) == 1:
			return c, nil, "the time zone after in is missing; it must be a name of the IANA database, such as Europe/Berlin"
		case words[0] == "in" && c.Zone == "":
			c.Zone, words = words[1], words[2:]
		case words[0] == "from" && c.Day == 0 && c.after() == 0:
			begin := words[1:]
			if len(begin) > 1 && begin[0] == "day" && number.MatchString(begin[1]) {
				if n, err := strconv.ParseUint(begin[1], 10, 8); err == nil {
					c.Day, begin = uint8(n), begin[2:]
				}
			}
			if len(begin) > 0 {
				if at, err := time.Parse("15:04", begin[0]); err == nil {
					c.Hour, c.Minute, begin = uint8(at.Hour()), uint8(at.Minute()), begin[1:]
				}
			}
			if len(begin) == len(words)-1 {
				return c, nil, fmt.Sprintf("from is %q; it must be a day of a month from 1 to 31, or of a week from 1, a Monday, to 7, such as from day 7, a time of day, such as from 03:00, or both, as in from day 7 03:00", strings.Join(begin[:min(len(begin), 2)], " "))
			}
			words = begin
		default:
			return c, words, ""
		}
	}
	return c, words, ""
}

// MarshalText returns the text that [ParseLimit] reads after per, or an error that wraps
// [ErrInvalid] if c is not valid.
func (c Calendar) MarshalText() ([]byte, error) {
	if problem := c.problemIn(new(Limit)); problem != "" {
		return nil, invalid.Errorf("quota: %s", problem)
	}
	return []byte(c.String()), nil
}

// UnmarshalText sets c to the calendar that text describes, as in "month in Europe/Berlin".
func (c *Calendar) UnmarshalText(text []byte) error {
	if words := strings.Fields(string(text)); len(words) > 0 {
		if parsed, tail, problem := parseCalendar(words); problem == "" && len(tail) == 0 {
			if problem := parsed.problemIn(new(Limit)); problem != "" {
				return invalid.Errorf("quota: %s", problem)
			}
			*c = parsed
			return nil
		}
	}
	return invalid.Errorf("quota: calendar is %q; it must be day, week or month, and as needed in a time zone and from day 31 or 03:00, such as month in Europe/Berlin from day 31", text)
}

// UnmarshalText sets l to the limit that text describes, as [ParseLimit] reads it.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := ParseLimit(string(text))
	if err == nil {
		*l = parsed
	}
	return err
}

// unitText is the quota of a limit and a unit before per.
var unitText = regexp.MustCompile(`^(\s*[0-9]+\s+)([a-zA-Z-]+)\s+(per\s)`)

// ParsePolicy returns the policy that text describes: its name, a colon, and limits between
// commas, as [ParseLimit] reads them. A word between a quota and per is the policy's Unit.
//
//	core: 60 per hour
//	core: 20 per minute, 500 per day in UTC
//	model: 2000 tokens per minute
//
// An error wraps [ErrInvalid]: text has another form, or the policy is not valid.
func ParsePolicy(text string) (*Policy, error) {
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 {
		return nil, invalid.Errorf("quota: policy is %q, without a colon; it must be a name, a colon and limits, such as core: 60 per hour", text)
	}
	p, unit := &Policy{Name: strings.TrimSpace(text[:colon])}, ""
	wrong := func(err error) error {
		return invalid.Errorf("quota: policy %q: %s", p.Name, strings.TrimPrefix(err.Error(), "quota: "))
	}
	for limit := range strings.SplitSeq(text[colon+1:], ",") {
		if words := unitText.FindStringSubmatch(limit); words != nil {
			if err := p.Unit.UnmarshalText([]byte(words[2])); err != nil {
				return nil, wrong(err)
			}
			if unit != "" && unit != words[2] {
				return nil, invalid.Errorf("quota: policy %q has limits of %s and of %s; it must have one unit, so write two policies", p.Name, unit, words[2])
			}
			unit, limit = words[2], words[1]+words[3]+limit[len(words[0]):]
		}
		l, err := ParseLimit(limit)
		if err != nil {
			return nil, wrong(err)
		}
		p.Limits = append(p.Limits, l)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

const day = 24 * time.Hour

var (
	number = regexp.MustCompile(`^[1-9][0-9]*$`)
	days   = regexp.MustCompile(`^([1-9][0-9]{0,4})([dw])(.*)$`)
)

// ParseWindow is time.ParseDuration with days of 24 hours and weeks of seven of them, as in 1d,
// 1d12h and 2w, and without durations that are zero or negative. An error wraps [ErrInvalid].
func ParseWindow(text string) (time.Duration, error) {
	tail, total := text, time.Duration(0)
	if parts := days.FindStringSubmatch(text); parts != nil {
		n, _ := strconv.Atoi(parts[1]) // at most five digits
		if total, tail = time.Duration(n)*day, parts[3]; parts[2] == "w" {
			total *= 7
		}
		if tail == "" {
			return total, nil
		}
	}
	d, err := time.ParseDuration(tail)
	if err != nil || d <= 0 || total > 0 && d >= day {
		return 0, invalid.Errorf("quota: window is %q; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d", text)
	}
	return total + d, nil
}

// FormatWindow returns d as [ParseWindow] reads it: 1m and not 1m0s, 1d12h and not 36h0m0s.
func FormatWindow(d time.Duration) string {
	text := ""
	if d >= day {
		text = fmt.Sprintf("%dd", d/day)
		if d %= day; d == 0 {
			return text
		}
	}
	tail := d.String()
	if strings.HasSuffix(tail, "m0s") {
		tail = strings.TrimSuffix(tail, "0s")
	}
	if strings.HasSuffix(tail, "h0m") {
		tail = strings.TrimSuffix(tail, "0m")
	}
	return text + tail
}
