package envoyfile_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/throttler/quota"
)

// one is a file of one descriptor, in line 3.
func one(descriptor string) string { return "domain: d\ndescriptors:\n- " + descriptor + "\n" }

// limit is a file of one limit, in line 3, with further keys.
func limit(keys string) string { return one("{key: a, rate_limit: {" + keys + "}}") }

const (
	keysOfFile       = "name, domain, descriptors"
	keysOfDescriptor = "key, value, rate_limit, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata, descriptors"
	keysOfLimit      = "unit, requests_per_unit, unlimited, name, replaces, unit_multiplier, calendar, algorithm, burst, report, hidden, consistency"

	domain     = "it must be the name of a domain, such as edge_proxy"
	key        = "it must be a key, such as remote_address"
	unit       = "it must be second, minute, hour, day, week, month or year"
	requests   = "it must be a whole number from 0 to 4294967295; 0 refuses every request, and unlimited: true allows every request"
	algorithms = "it must be fixed-window, sliding-window, sliding-log or token-bucket"
)

// Each mistake is reported with its line and a valid value, and nothing else is reported.
func TestWrongFiles(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		// No YAML.
		{"a tab", "domain: d\ndescriptors:\n\t- key: a\n", "f.yaml:3: the line begins with a tab; indent it by spaces, as YAML asks"},
		{"a brace that is not closed", "domain: d\ndescriptors: [{key: a\n", "f.yaml:3: did not find expected ',' or '}', while parsing a flow mapping that begins in line 2"},
		{"a quote that is not closed", "domain: d\ndescriptors:\n- key: \"a\n", "f.yaml:4: found unexpected end of stream, while scanning a quoted scalar that begins in line 3"},
		{"an indentation between two", "domain: d\ndescriptors:\n  - key: a\n   value: b\n", "f.yaml:4: did not find expected '-' indicator, while parsing a block collection that begins in line 3"},
		{"a byte of Latin-1", "domain: d\nname: \xe4\n", "f.yaml:2: the text is not UTF-8; save it as UTF-8"},
		{"a NUL", "domain: d\nname: \x00\n", `f.yaml:2: the line has a control character; write it as an escape such as \0 in double quotes, or leave it out`},
		{"an alias of nothing", "domain: d\ndescriptors: *all\n", "f.yaml:2: unknown anchor 'all' referenced; write the value itself"},
		{"an alias of what it is in", "domain: d\ndescriptors: &all\n- {key: a, descriptors: *all}\n", "f.yaml:3: anchor 'all' value contains itself; write the value itself"},
		{"a template", "domain: {{ .Values.domain }}\n", "f.yaml:1: domain: a key is a mapping; it must be a word\nf.yaml:1: domain is a mapping; it must be text"},

		// Another form.
		{"nothing", "# to be written\n", "f.yaml: the file is empty"},
		{"a list", "- domain: d\n", "f.yaml:1: the file is a list; it must be a mapping with " + keysOfFile},
		{"two documents", "domain: d\n---\ndomain: e\n", "f.yaml:2: a second document begins here; one file is one configuration"},
		{"no domain", "descriptors: []\n", "f.yaml:1: domain is missing; " + domain},
		{"an empty domain", "domain: ''\n", "f.yaml:1: domain is missing; " + domain},
		{"two domains", "domain: d\ndomain: e\n", "f.yaml:2: domain is set twice, first in line 1"},
		{"another key", "domain: d\ndescriptor: []\n", "f.yaml:2: unknown key descriptor; did you mean descriptors? The keys here are " + keysOfFile},
		{"a mapping of descriptors", "domain: d\ndescriptors: {a: {unit: day}}\n", "f.yaml:2: descriptors is a mapping; it must be a list of mappings with " + keysOfDescriptor},
		{"text for descriptors", "domain: d\ndescriptors: none\n", `f.yaml:2: descriptors is "none"; it must be a list of mappings with ` + keysOfDescriptor},

		// Descriptors.
		{"no key", one("{value: b}"), "f.yaml:3: descriptors[0].key is missing; " + key},
		{"nothing in a list", one(""), "f.yaml:3: descriptors[0] is missing; write a value, or leave the item out"},
		{"a list for a key", one("{key: [a]}"), "f.yaml:3: descriptors[0].key is a list; it must be text"},
		{"a mapping for a value", one("{key: a, value: {b: c}}"), "f.yaml:3: descriptors[0].value is a mapping; it must be text"},
		{"a tag", one("{key: !!binary YQ==}"), "f.yaml:3: descriptors[0].key has the tag !!binary; leave the tag out"},
		{"a misspelled key", one("{key: a, rate_limits: {}}"), "f.yaml:3: unknown key rate_limits; did you mean rate_limit? The keys here are " + keysOfDescriptor},
		{"a limit's key", one("{key: a, unit: day}"), "f.yaml:3: unknown key unit; the keys here are " + keysOfDescriptor},
		{"a key twice", one("{key: a, key: b}"), "f.yaml:3: descriptors[0].key is set twice, first in line 3"},
		{"a descriptor twice", one("{key: a, value: b}\n- {key: a, value: b}"), `f.yaml:4: descriptors[1].key is "a"; it must be another, or have another value: descriptors[0] has both`},
		{"one within another twice", one("key: a\n  descriptors: [{key: b},\n    {key: b}]"), `f.yaml:5: descriptors[0].descriptors[1].key is "b"; it must be another, or have another value: descriptors[0].descriptors[0] has both`},
		{"a mode that is a number", one("{key: a, shadow_mode: 3}"), `f.yaml:3: descriptors[0].shadow_mode is "3"; it must be true or false`},
		{"a shared count of one value", one("{key: a, value: b, share_threshold: true}"), `f.yaml:3: descriptors[0].share_threshold is "true"; it must be left out: it shares one count among the values that a * matches, and value has no *`},
		{"metadata that is a number", one("{key: a, metadata: 5}"), `f.yaml:3: descriptors[0].metadata is "5"; it must be a mapping of values that JSON can represent`},
		{"metadata that is no JSON", one("{key: a, metadata: {x: [.nan]}}"), "f.yaml:3: descriptors[0].metadata is a mapping; it must be a mapping of values that JSON can represent"},

		// Limits.
		{"a limit in words", one("{key: a, rate_limit: 5/m}"), `f.yaml:3: descriptors[0].rate_limit is "5/m"; it must be a mapping with ` + keysOfLimit},
		{"a list of limits", one("{key: a, rate_limit: [{unit: day}]}"), "f.yaml:3: descriptors[0].rate_limit is a list; it must be a mapping with " + keysOfLimit},
		{"no unit", limit("requests_per_unit: 1"), "f.yaml:3: descriptors[0].rate_limit.unit is missing; " + unit},
		{"units", limit("unit: minutes, requests_per_unit: 1"), `f.yaml:3: descriptors[0].rate_limit.unit is "minutes"; ` + unit},
		{"no requests", limit("unit: day"), "f.yaml:3: descriptors[0].rate_limit.requests_per_unit is missing; " + requests},
		{"requests below 0", limit("unit: day, requests_per_unit: -1"), `f.yaml:3: descriptors[0].rate_limit.requests_per_unit is "-1"; ` + requests},
		{"a part of a request", limit("unit: day, requests_per_unit: 1.5"), `f.yaml:3: descriptors[0].rate_limit.requests_per_unit is "1.5"; ` + requests},
		{"too many requests", limit("unit: day, requests_per_unit: 4294967296"), `f.yaml:3: descriptors[0].rate_limit.requests_per_unit is "4294967296"; ` + requests},
		{"a unit of no limit", limit("unlimited: true, unit: day"), `f.yaml:3: descriptors[0].rate_limit.unit is "day"; it must be left out, because unlimited is true`},
		{"a misspelled key of a limit", limit("unit: day, request_per_unit: 1, requests_per_unit: 1"), "f.yaml:3: unknown key request_per_unit; did you mean requests_per_unit? The keys here are " + keysOfLimit},
		{"descriptors of a limit", limit("unit: day, requests_per_unit: 1, descriptors: []"), "f.yaml:3: unknown key descriptors; the keys here are " + keysOfLimit},
		{"a bucket that is unlimited", limit("unlimited: true, algorithm: token-bucket"), `f.yaml:3: descriptors[0].rate_limit.algorithm is "token-bucket"; it must be left out, because unlimited is true`},
		{"an unlimited calendar", limit("unlimited: true, calendar: day"), `f.yaml:3: descriptors[0].rate_limit.calendar is "day"; it must be left out, because unlimited is true`},
		{"one that replaces itself", limit("unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}]"), `f.yaml:3: descriptors[0].rate_limit.replaces[0].name is "n"; it must be the name of another limit: this is its own`},
		{"one that replaces nothing", limit("unit: day, requests_per_unit: 1, replaces: [{}]"), "f.yaml:3: descriptors[0].rate_limit.replaces[0].name is missing; it must be the name of a limit"},
		{"text that is replaced", limit("unit: day, requests_per_unit: 1, replaces: [n]"), `f.yaml:3: descriptors[0].rate_limit.replaces[0] is "n"; it must be a mapping with name`},

		// Keys of weir.
		{"another algorithm", limit("unit: day, requests_per_unit: 1, algorithm: token_bucket"), `f.yaml:3: descriptors[0].rate_limit.algorithm is "token_bucket"; ` + algorithms},
		{"a queue", limit("unit: day, requests_per_unit: 1, algorithm: leaky-bucket"), `f.yaml:3: descriptors[0].rate_limit.algorithm is "leaky-bucket"; ` + algorithms},
		{"requests in flight", limit("unit: day, requests_per_unit: 1, algorithm: in-flight"), `f.yaml:3: descriptors[0].rate_limit.algorithm is "in-flight"; ` + algorithms},
		{"a burst of a window", limit("unit: day, requests_per_unit: 1, burst: 2"), `f.yaml:3: descriptors[0].rate_limit.burst is "2"; it must be left out, or algorithm must be token-bucket`},
		{"a log that is too long", limit("unit: day, requests_per_unit: 10001, algorithm: sliding-log"), `f.yaml:3: descriptors[0].rate_limit.requests_per_unit is "10001"; it must be within the bounds of a limit: quota: policy "check": limit 0: quota is 10001; a sliding-log stores every charge, so it must be at most 10000 (a sliding-window has no such bound)`},
		{"no units", limit("unit: day, requests_per_unit: 1, unit_multiplier: 0"), `f.yaml:3: descriptors[0].rate_limit.unit_multiplier is "0"; it must be from 1 to 366, as many units as a window may have`},
		{"too many units", limit("unit: hour, requests_per_unit: 1, unit_multiplier: 4294967295"), `f.yaml:3: descriptors[0].rate_limit.unit_multiplier is "4294967295"; it must be from 1 to 8784, as many units as a window may have`},
		{"a part of a unit", limit("unit: hour, requests_per_unit: 1, unit_multiplier: 0.5"), `f.yaml:3: descriptors[0].rate_limit.unit_multiplier is "0.5"; it must be a whole number, 0 or more`},
		{"a calendar of hours", limit("calendar: hour, requests_per_unit: 1"), `f.yaml:3: descriptors[0].rate_limit.calendar is "hour"; it must be day, week or month, and as needed in a time zone and from day 31 or 03:00, such as month in Europe/Berlin from day 31`},
		{"a calendar and a unit", limit("calendar: day in UTC, unit: day, requests_per_unit: 1"), `f.yaml:3: descriptors[0].rate_limit.unit is "day"; it must be left out, because calendar is set`},
		{"units of a calendar", limit("calendar: day in UTC, unit_multiplier: 2, requests_per_unit: 1"), `f.yaml:3: descriptors[0].rate_limit.unit_multiplier is "2"; it must be left out, because calendar is set`},
		{"a bucket of a calendar", limit("calendar: day in UTC, algorithm: token-bucket, requests_per_unit: 1"), `f.yaml:3: descriptors[0].rate_limit.algorithm is "token-bucket"; it must be left out, because calendar is set, and only a fixed-window has one`},
		{"another level", limit("unit: day, requests_per_unit: 1, consistency: lease"), `f.yaml:3: descriptors[0].rate_limit.consistency is "lease"; it must be exact, leased or synced`},
		{"a log that is synced", limit("unit: day, requests_per_unit: 1, algorithm: sliding-log, consistency: synced"), `f.yaml:3: descriptors[0].rate_limit.consistency is "synced"; it must be one that this limit can have: synced: policy "check": limit 0, 1 per 24h0m0s (sliding-log), cannot be synced: its count is not a sum that processes can add to: it must be a token-bucket or an aligned fixed-window`},
	} {
		_, err := envoyfile.Parse("f.yaml", []byte(c.text), nil)
		if !errors.Is(err, quota.ErrInvalid) || err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

// All mistakes of a file are reported at once.
func TestAllMistakes(t *testing.T) {
	_, err := envoyfile.Parse("f.yaml", []byte(one("{key: a, rate_limit: {unit: fortnight, request_per_unit: 1}}\n- {value: b}\n- {key: a}")), nil)
	lines := strings.Split(fmt.Sprint(err), "\n")
	for i, want := range []string{
		"f.yaml:3: descriptors[0].rate_limit.requests_per_unit is missing; ",
		`f.yaml:3: descriptors[0].rate_limit.unit is "fortnight"; `,
		"f.yaml:3: unknown key request_per_unit; ",
		"f.yaml:4: descriptors[1].key is missing; ",
		`f.yaml:5: descriptors[2].key is "a"; it must be another`,
	} {
		if len(lines) != 5 || !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("%d: %q is not in\n%v", i, want, err)
		}
	}
}

// These files may look wrong, but are right: envoyproxy/ratelimit accepts them, too.
func TestRightFiles(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"a byte order mark", "\ufeffdomain: d\n"},
		{"JSON, which is YAML", `{"domain": "d", "descriptors": [{"key": "a"}]}`},
		{"no descriptors: what is asked has no limit", "domain: d\n"},
		{"a descriptor without a limit, which is an exception to what is wider", one("{key: a, value: b}\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}")},
		{"a limit that is null", one("{key: a, rate_limit: }")},
		{"0 requests, which refuses all", limit("unit: day, requests_per_unit: 0")},
		{"hexadecimal, octal and digits in groups, as YAML 1.1 has them", one("key: a\n  rate_limit: {unit: day, requests_per_unit: 0x10}\n- {key: b, rate_limit: {unit: DAY, requests_per_unit: 010}}\n- {key: c, rate_limit: {unit: Day, requests_per_unit: 1_000}}")},
		{"a number in quotes", limit("unit: day, requests_per_unit: '5'")},
		{"requests of what is unlimited", limit("unlimited: yes, requests_per_unit: 5")},
		{"numbers for texts", "domain: 5\ndescriptors: [{key: 7, value: 1.5}, {key: a, value: true}]\n"},
		{"a limit that no file has, replaced", limit("unit: day, requests_per_unit: 1, replaces: [{name: gone}]")},
		{"a star in a key", one("{key: 'a*', rate_limit: {unit: day, requests_per_unit: 1}}")},
		{"an alias of another value", "domain: d\ndescriptors:\n- {key: a, rate_limit: &l {unit: day, requests_per_unit: 1}}\n- {key: b, rate_limit: *l}\n"},
	} {
		if _, err := envoyfile.Parse("f.yaml", []byte(c.text), nil); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]time.Duration{"second": time.Second, "MINUTE": time.Minute, "Hour": time.Hour, "day": 24 * time.Hour, "week": 168 * time.Hour, "month": 720 * time.Hour, "year": 8760 * time.Hour} {
		var u envoyfile.Unit
		if err := u.UnmarshalText([]byte(text)); err != nil || u.Window() != want {
			t.Errorf("%s: %v, %v; want %v", text, u.Window(), err, want)
		}
	}
	if w := envoyfile.Unit(8).Window(); w != 0 {
		t.Errorf("unit 8 has %v", w)
	}
}

func TestMultiplesOfUnitsAndCalendars(t *testing.T) {
	for keys, want := range map[string]quota.Limit{
		"unit: hour, unit_multiplier: 3":                                       {Quota: 9, Window: 3 * time.Hour, Aligned: true},
		"unit: second, unit_multiplier: 30, algorithm: token-bucket, burst: 5": {Quota: 9, Window: 30 * time.Second, Algorithm: quota.TokenBucket, Burst: 5},
		"calendar: month in Europe/Berlin from day 31":                         {Quota: 9, Calendar: quota.Calendar{Period: quota.Month, Zone: "Europe/Berlin", Day: 31}},
		"calendar: day in Europe/Berlin from 03:00":                            {Quota: 9, Calendar: quota.Calendar{Period: quota.Day, Zone: "Europe/Berlin", Hour: 3}},
		"calendar: week": {Quota: 9, Calendar: quota.Calendar{Period: quota.Week}},
	} {
		f, err := envoyfile.Parse("f.yaml", []byte(limit("requests_per_unit: 9, "+keys)), nil)
		if err != nil {
			t.Errorf("%s: %v", keys, err)
			continue
		}
		l := f.Descriptors[0].RateLimit
		if got := l.Policy("p").Limits[0]; got != want || l.Unit == 0 {
			t.Errorf("%s: %v, unit %v; want %v", keys, got, l.Unit, want)
		}
	}
}

// The paths of values that are thousands of levels deep would need gigabytes.
func TestDepth(t *testing.T) {
	nested := func(n int) []byte {
		return []byte("domain: d\ndescriptors: " + strings.Repeat("[{key: k, descriptors: ", n) + "[]" + strings.Repeat("}]", n))
	}
	if _, err := envoyfile.Parse("limits.yaml", nested(100), nil); err != nil {
		t.Errorf("100 descriptors: %.200v", err)
	}
	_, err := envoyfile.Parse("limits.yaml", nested(101), nil)
	if err == nil || !strings.HasSuffix(err.Error(), ".descriptors is a list; it must be left out: at most 100 descriptors may be below one another") {
		t.Errorf("101 descriptors: %.3000v", err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = envoyfile.Parse("limits.yaml", nested(4900), nil)
	runtime.ReadMemStats(&after)
	if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; !errors.Is(err, quota.ErrInvalid) || mb > 100 {
		t.Errorf("4900 descriptors: %d MB, %.200v; want a mistake, and 100 MB at most", mb, err)
	}
}

func TestTogether(t *testing.T) {
	file := func(name, text string) *envoyfile.File {
		t.Helper()
		f, err := envoyfile.Parse(name, []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	a := file("a.yaml", one("{key: a}"))
	b := file("b.yaml", one("{key: b, descriptors: [{key: c}]}"))
	again := file("c.yaml", one("{key: b, descriptors: [{key: d}]}"))
	levels := file("d.yaml", one("key: m\n  value: n\n  rate_limit: {unit: day, requests_per_unit: 1, consistency: leased}\n- {key: m, rate_limit: {unit: day, requests_per_unit: 1}}"))
	for _, c := range []struct {
		files []*envoyfile.File
		merge bool
		want  string
	}{
		{[]*envoyfile.File{a, b}, true, ""},
		{[]*envoyfile.File{b, a}, false, `b.yaml: domain is "d", as in a.yaml; a domain must be in one file, unless MERGE_DOMAIN_CONFIG is true`},
		{[]*envoyfile.File{a, b, again}, true, `c.yaml: descriptors[0] has the key and value of a descriptor of another file of the domain "d"; they must differ`},
		{[]*envoyfile.File{levels}, false, "d.yaml: descriptors[1]: the level of d.m is leased and exact; limits of the same keys, whatever their values, must have one"},
	} {
		files := slices.Clone(c.files)
		envoyfile.Sort(files)
		err := envoyfile.Together(files, c.merge)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, quota.ErrInvalid) || err.Error() != c.want) {
			t.Errorf("%v\nwant %s", err, c.want)
		}
	}
}

// No text is a panic, and each mistake of a file that is not empty has a line.
func TestWarnings(t *testing.T) {
	const limited = "rate_limit: {unit: day, requests_per_unit: 1}"
	for _, c := range []struct{ name, text, want string }{
		{"no limit at all", one("{key: a, descriptors: [{key: b}]}"), `the domain "d" has no rate_limit, so that every request is allowed, unless it brings its own limit`},
		{"no limit below", one("{key: a, value: x, descriptors: [{key: b}]}\n- {key: b, " + limited + "}"), `descriptors[0], of key "a", has no effect: neither it nor a descriptor below it has a rate_limit, and it is no exception to another that has one`},
		{"a level deeper", one("{key: a, descriptors: [{key: b}, {key: c, " + limited + "}]}"), `descriptors[0].descriptors[0], of key "b", has no effect: neither it nor a descriptor below it has a rate_limit, and it is no exception to another that has one`},
		{"an exception to a narrower one", one("{key: a, value: x}\n- {key: a, value: y, " + limited + "}"), `descriptors[0], of key "a", has no effect: neither it nor a descriptor below it has a rate_limit, and it is no exception to another that has one`},
		{"an exception", one("{key: a, value: x}\n- {key: a, " + limited + "}"), ""},
		{"an exception to a pattern", one("{key: a, value: xy}\n- {key: a, value: 'x*', " + limited + "}"), ""},
		{"an exception to a key with a star", one("{key: ab}\n- {key: 'a*', " + limited + "}"), ""},
		{"an exception to one that is joined", one("{key: a_b}\n- {key: a, " + limited + "}"), ""},
		{"an exception to one with limits below", one("{key: a, value: x, descriptors: [{key: b}]}\n- {key: a, descriptors: [{key: b, " + limited + "}]}"), ""},
		{"shadow_mode above", one("{key: a, shadow_mode: true, descriptors: [{key: b, " + limited + "}]}"), "descriptors[0].shadow_mode has no effect: the descriptor has no rate_limit, and the mode is not for those below it"},
		{"modes above", one("{key: a, quota_mode: true, detailed_metric: true, value_to_metric: true, descriptors: [{key: b, " + limited + "}]}"), "descriptors[0].quota_mode has no effect: the descriptor has no rate_limit, and the mode is not for those below it\nf.yaml: descriptors[0].detailed_metric has no effect: the descriptor has no rate_limit, and the mode is not for those below it"},
		{"modes of a limit", one("{key: a, shadow_mode: true, detailed_metric: true, " + limited + "}"), ""},
		{"one that replaces nothing", one("{key: a, rate_limit: {unlimited: true, replaces: [{name: b}]}}\n- {key: b, " + limited + "}"), `descriptors[0].rate_limit.replaces[0] has no effect: no limit of the domain has the name "b"`},
		{"one that replaces another", one("{key: a, rate_limit: {unlimited: true, replaces: [{name: b}]}}\n- {key: b, descriptors: [{key: c, rate_limit: {name: b, unlimited: true}}]}"), ""},
		{"one behind every value", one("{key: a, value: '*', " + limited + "}\n- {key: a, value: 'b*', " + limited + "}\n- {key: a, value: b, " + limited + "}"), `descriptors[1], of key "a", has no effect: descriptors[0], before it, matches every value`},
		{"one behind a wider pattern", one("{key: a, value: 'b*', " + limited + "}\n- {key: a, value: 'b*c*', " + limited + "}\n- {key: a, value: bc, " + limited + "}"), `descriptors[1], of key "a", has no effect: descriptors[0], before it, matches every value that "b*c*" does; put the wider pattern behind`},
		{"one behind an exception of every value", one("{key: a, value: '*'}\n- {key: a, " + limited + "}"), `descriptors[1], of key "a", has no effect: descriptors[0], before it, matches every value`},
		{"one behind a pattern of some of its values", one("{key: a, value: 'b*c', " + limited + "}\n- {key: a, value: 'b*', " + limited + "}\n- {key: a, value: '*c', " + limited + "}\n- {key: b, value: 'b*c', " + limited + "}"), ""},
		{"a regular expression", one("{key: path, value: '/api/.*', " + limited + "}"), `descriptors[0].value is "/api/.*", which is no regular expression here: * is for any number of characters, and the others are themselves`},
		{"white space", one("{key: 'a ', value: x, " + limited + "}"), `descriptors[0].key is "a ", with white space at an end, which a request must have, too`},
		{"one in front of every value", one("{key: a, value: 'b*', " + limited + "}\n- {key: a, value: '*', " + limited + "}"), ""},
	} {
		f, err := envoyfile.Parse("f.yaml", []byte(c.text), nil)
		if err != nil {
			t.Fatal(err)
		}
		want := c.want
		if want != "" {
			want = "f.yaml: " + want
		}
		if got := strings.Join(envoyfile.Warnings([]*envoyfile.File{f}), "\n"); got != want {
			t.Errorf("%s: %s\nwant %s", c.name, got, want)
		}
	}
	exception, err := envoyfile.Parse("a.yaml", []byte(one("{key: a, value: x}")), nil)
	other, err2 := envoyfile.Parse("b.yaml", []byte(one("{key: a, "+limited+"}")), nil)
	if got := envoyfile.Warnings([]*envoyfile.File{exception, other}); err != nil || err2 != nil || got != nil {
		t.Errorf("an exception in another file of the domain: %q, %v, %v", got, err, err2)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(limit("calendar: month in Europe/Berlin from day 31, requests_per_unit: 0x10, algorithm: sliding-log, burst: 3"))
	f.Add(limit("unit: hour, unit_multiplier: 3, requests_per_unit: 5, replaces: [{name: a}]"))
	f.Add("domain: d\ndescriptors: &d\n- &a {key: a, value: 'b*', share_threshold: yes, metadata: &m {x: [1, .nan]}}\n- {<<: *a, key: b, metadata: *m, descriptors: [*a]}\n")
	f.Add("domain: !t d\ndescriptors: [ , {? [a] : b}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, err := envoyfile.Parse("f.yaml", []byte(text), nil)
		if err == nil {
			return
		}
		for _, line := range strings.Split(err.Error(), "\n") {
			if rest := strings.TrimPrefix(line, "f.yaml:"); rest == line || (rest[0] < '0' || rest[0] > '9') && rest != " the file is empty" {
				t.Errorf("%q: no line in %q", text, line)
			}
		}
	})
}

// Metadata may have keys that are no text, and dates, which stay as they are written.
func TestMetadata(t *testing.T) {
	text := "domain: d\ndescriptors:\n- {key: a, metadata: {1: one, true: 2, since: 2026-01-02, deep: [{3: 2026-01-02T03:04:05Z}]}, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	f, err := envoyfile.Parse("a.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(f.Descriptors[0].Fields), "map[1:one deep:[map[3:2026-01-02T03:04:05Z]] since:2026-01-02 true:2]"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	for _, wrong := range []string{"[a]", "text", "{a: .nan}", "&x {a: *x}"} {
		if _, err := envoyfile.Parse("a.yaml", []byte("domain: d\ndescriptors:\n- {key: a, metadata: "+wrong+"}\n"), nil); err == nil {
			t.Errorf("metadata: %s is right", wrong)
		}
	}
}
