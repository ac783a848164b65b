package descriptors

import (
	"slices"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/throttler/quota"
)

// entriesOf returns the entries of a text such as "a=b c=".
func entriesOf(text string) (all Entries) {
	for _, e := range strings.Fields(text) {
		key, value, _ := strings.Cut(e, "=")
		all = append(all, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return all
}

func mustSet(t *testing.T, texts ...string) *Set {
	t.Helper()
	var files []*envoyfile.File
	for i, text := range texts {
		f, err := envoyfile.Parse(string(rune('a'+i))+".yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	s, err := New(files, true, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const everything = `
domain: edge
descriptors:
  - key: addr
    rate_limit: {unit: SECOND, requests_per_unit: 5, name: per-address}
    descriptors:
      - {key: path, value: /login, rate_limit: {unit: minute, requests_per_unit: 0x10}}
  - {key: addr, value: 10.0.0.1, rate_limit: {unlimited: true, replaces: [{name: per-address}]}}
  - {key: path, value: /api/*, rate_limit: {unit: hour, requests_per_unit: 7}, share_threshold: yes}
  - {key: path, value: /api/v1/*, rate_limit: {unit: day, requests_per_unit: 7}}
  - {key: path, value: "/*/b*/c", rate_limit: {unit: week, requests_per_unit: 0}, shadow_mode: true}
  - {key: tenant, value: acme, metadata: {tier: gold, n: [1, {x: null}]}, quota_mode: true, rate_limit: {unit: month, requests_per_unit: 9}}
  - key: tenant
    value_to_metric: true
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 9, algorithm: token-bucket, burst: 20, report: true}, detailed_metric: true}
      - {key: a_b, rate_limit: {unit: year, requests_per_unit: 9}}
`

func TestMatch(t *testing.T) {
	s := mustSet(t, everything)
	d := s.Domain("edge")
	for entries, want := range map[string]struct{ path, key string }{
		"addr=1.2.3.4":              {"edge.addr", "edge?addr=1.2.3.4"},
		"addr=":                     {"edge.addr", "edge?addr="},
		"addr=1.2.3.4 path=/login":  {"edge.addr.path_/login", "edge?addr=1.2.3.4&path=/login"},
		"addr=1.2.3.4 path=/":       {"", ""},
		"addr=10.0.0.1":             {"edge.addr_10.0.0.1", "edge?addr=10.0.0.1"},
		"addr=10.0.0.1 path=/login": {"", ""}, // a match of the value does not fall back to the key alone
		"path=/api/v1/x":            {"edge.path_/api/*", "edge?path~/api/*"},
		"path=/api/":                {"edge.path_/api/*", "edge?path~/api/*"},
		"path=/api/*":               {"edge.path_/api/*", "edge?path~/api/*"}, // a client that sends the pattern shares, too
		"path=/a/bb/c":              {"edge.path_/*/b*/c", "edge?path=/a/bb/c"},
		"path=/a/b/b/c":             {"edge.path_/*/b*/c", "edge?path=/a/b/b/c"},
		"path=/b/c":                 {"", ""},
		"tenant=acme":               {"edge.tenant_acme", "edge?tenant=acme"},
		"tenant=acme user=u":        {"", ""},
		"tenant=x":                  {"", ""}, // not as deep as a limit
		"tenant=a&b user=%~":        {"edge.tenant.user", "edge?tenant=a%26b&user=%25%7E"},
		"tenant=x a=b":              {"", ""}, // a_b is a key, and not a with the value b
		"other=1":                   {"", ""},
		"":                          {"", ""},
	} {
		rule, key := d.Match(nil, entriesOf(entries))
		switch {
		case rule == nil && want.path != "":
			t.Errorf("%q matches nothing, want %s", entries, want.path)
		case rule != nil && (rule.Path != want.path || string(key) != want.key):
			t.Errorf("%q: %s, %s; want %v", entries, rule.Path, key, want)
		}
	}
}

func TestRules(t *testing.T) {
	s := mustSet(t, everything)
	rule := func(path string) *Rule {
		i := slices.IndexFunc(s.Rules(), func(r *Rule) bool { return r.Path == path })
		if i < 0 {
			t.Fatalf("no rule %s", path)
		}
		return s.Rules()[i]
	}
	for path, want := range map[string]quota.Limit{
		"edge.addr":             {Quota: 5, Window: time.Second, Aligned: true},
		"edge.addr.path_/login": {Quota: 16, Window: time.Minute, Aligned: true},
		"edge.tenant_acme":      {Quota: 9, Window: 720 * time.Hour, Aligned: true},
		"edge.tenant.user":      {Quota: 9, Window: 24 * time.Hour, Algorithm: quota.TokenBucket, Burst: 20},
	} {
		if got := rule(path).Policy.Limits[0]; got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
		if err := rule(path).Policy.Validate(); err != nil {
			t.Error(err)
		}
	}
	if r := rule("edge.path_/*/b*/c"); !r.RefusesAll || !r.Shadow || r.Counts() {
		t.Errorf("%+v refuses all in shadow mode", r)
	}
	if r := rule("edge.addr_10.0.0.1"); !r.Unlimited || r.Replaces[0] != "per-address" {
		t.Errorf("%+v is unlimited", r)
	}
	if r := rule("edge.tenant_acme"); r.Metadata.GetFields()["tier"].GetStringValue() != "gold" || !r.Quota {
		t.Errorf("%+v has metadata", r)
	}
	labels := s.Domain("edge").LabelsOf(rule("edge.tenant.user"), entriesOf("tenant=x user=u"))
	if labels != (Labels{"edge", "tenant_x", "user_u"}) {
		t.Errorf("labels %+v", labels)
	}
	if labels := s.Domain("edge").LabelsOf(rule("edge.addr"), entriesOf("addr=x")); labels != (Labels{"edge", "addr", ""}) {
		t.Errorf("labels %+v", labels)
	}
}

// Answers have the multiple of the unit, or the unit of the calendar.
func TestMultiplesOfUnitsAndCalendars(t *testing.T) {
	s := mustSet(t, "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: hour, unit_multiplier: 3, requests_per_unit: 5}}\n- {key: b, rate_limit: {calendar: month in Europe/Berlin, requests_per_unit: 5}}\n")
	a, b := s.Rules()[0].Limit, s.Rules()[1].Limit
	if a.UnitMultiplier.GetValue() != 3 || a.Unit.String() != "HOUR" || b.UnitMultiplier != nil || b.Unit.String() != "MONTH" {
		t.Errorf("got %v and %v", a, b)
	}
	var text strings.Builder
	if err := s.Dump(&text); err != nil || text.String() != "d.a: unit=HOUR requests_per_unit=5, shadow_mode: false, quota_mode: false, unit_multiplier: 3, policy: d.a\n"+
		"d.b: unit=MONTH requests_per_unit=5, shadow_mode: false, quota_mode: false, calendar: month in Europe/Berlin, policy: d.b\n" {
		t.Errorf("%v\n%s", err, &text)
	}
}

func TestDomainsOfSeveralFiles(t *testing.T) {
	a, _ := envoyfile.Parse("a.yaml", []byte("domain: d\ndescriptors: [{key: a}]"), nil)
	b, _ := envoyfile.Parse("b.yaml", []byte("domain: d\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]"), nil)
	if _, err := New([]*envoyfile.File{b, a}, false, false); err == nil || err.Error() != `b.yaml: domain is "d", as in a.yaml; a domain must be in one file, unless MERGE_DOMAIN_CONFIG is true` {
		t.Error(err)
	}
	if s, err := New([]*envoyfile.File{a, b}, true, false); err != nil || len(s.Rules()) != 1 {
		t.Error(s, err)
	}
	if _, err := New([]*envoyfile.File{a, a}, true, false); err == nil || err.Error() != `a.yaml: descriptors[0] has the key and value of a descriptor of another file of the domain "d"; they must differ` {
		t.Error(err)
	}
}

// To be compatible, keys and values are joined, as envoyproxy/ratelimit joins them.
func TestJoined(t *testing.T) {
	f, err := envoyfile.Parse("a.yaml", []byte(`
domain: d
descriptors:
  - {key: a_b, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: x, value: "y*", rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: q, value: r, rate_limit: {unit: day, requests_per_unit: 3}}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, compatible := range []bool{true, false} {
		set, err := New([]*envoyfile.File{f}, false, compatible)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range []*commonv3.RateLimitDescriptor_Entry{NewEntry("a", "b"), NewEntry("x_y", "z"), NewEntry("q_r", "any")} {
			if r, _ := set.Domain("d").Match(nil, Entries{entry}); (r != nil) != compatible {
				t.Errorf("compatible %t, %v: %v", compatible, entry, r)
			}
		}
		if r, key := set.Domain("d").Match(nil, Entries{NewEntry("q", "r")}); r == nil || string(key) != "d?q=r" {
			t.Errorf("compatible %t: %v, %s", compatible, r, key)
		}
	}
}
