// Package envoyfile reads the limits of an Envoy rate limit service from files in the form of
// envoyproxy/ratelimit. It only reads them; cmd/throttlerd decides by them.
package envoyfile

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler/quota"
)

// File is the content of a file about a domain.
type File struct {
	Name        string // of its generator; it has no effect
	Domain      string
	Descriptors []Descriptor

	// Source is the name of the file, for problems.
	Source string `yaml:"-"`

	supports Supports
}

// Supports returns why a policy can't be at a level, or nil.
type Supports func(p *quota.Policy, m consistency.Level) error

// Descriptor is a key, or a key and a value, with a limit, or with further descriptors below
// it.
type Descriptor struct {
	Key   string
	Value string // may have any number of '*', each for 0 or more characters

	RateLimit      *RateLimit `yaml:"rate_limit"`
	ShadowMode     bool       `yaml:"shadow_mode"`
	QuotaMode      bool       `yaml:"quota_mode"`
	DetailedMetric bool       `yaml:"detailed_metric"`
	ValueToMetric  bool       `yaml:"value_to_metric"`
	ShareThreshold bool       `yaml:"share_threshold"`
	Metadata       yaml.Node  // a mapping, or nothing
	Descriptors    []Descriptor

	// Fields are Metadata as values that JSON can encode, or nil.
	Fields map[string]any `yaml:"-"`
}

// String returns the key and value as envoyproxy/ratelimit shows them.
func (d *Descriptor) String() string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "_" + d.Value
}

// RateLimit is the limit of a descriptor. The fields after Replaces are weir's own.
type RateLimit struct {
	Unit            Unit
	RequestsPerUnit *Count `yaml:"requests_per_unit"` // not nil unless Unlimited
	Unlimited       bool
	Name            string
	Replaces        []Replaced

	// UnitMultiplier is the number of units in a window. If nil, 1.
	UnitMultiplier *uint32 `yaml:"unit_multiplier"`

	// Calendar, if not nil, makes the windows days, weeks or months of a time zone, in place
	// of Unit. Check sets Unit to the unit of that name.
	Calendar *quota.Calendar

	// Algorithm is how requests are counted. The zero value is a fixed window that begins
	// on multiples of the unit since the epoch, as envoyproxy/ratelimit counts.
	Algorithm Algorithm

	// Burst is the capacity of a bucket. If zero, RequestsPerUnit.
	Burst int64

	// Report charges all units that a request reports, even beyond the limit, and lets
	// checks with 0 hits decide: for costs that are known after the response.
	Report bool

	// Hidden keeps the limit out of answers: a status has no limit, and headers report others.
	Hidden bool

	// Level is where decisions are made: by the store, the zero value, or in a process.
	Level consistency.Level `yaml:"consistency"`
}

// Requests returns RequestsPerUnit, or 0.
func (l *RateLimit) Requests() Count {
	if l.RequestsPerUnit == nil {
		return 0
	}
	return *l.RequestsPerUnit
}

// Units returns the number of units in a window.
func (l *RateLimit) Units() uint32 {
	if l.UnitMultiplier == nil {
		return 1
	}
	return *l.UnitMultiplier
}

// Policy returns the policy of l, which must have a unit and not be unlimited.
func (l *RateLimit) Policy(name string) *quota.Policy {
	limit := quota.Limit{Quota: int64(l.Requests()), Algorithm: quota.Algorithm(l.Algorithm), Burst: l.Burst}
	if l.Calendar != nil {
		limit.Calendar = *l.Calendar
	} else {
		limit.Window = l.Unit.Window() * time.Duration(l.Units())
		limit.Aligned = limit.Algorithm.ResetsAtOnce()
	}
	return &quota.Policy{Name: name, Limits: []quota.Limit{limit}}
}

// Algorithm is a quota.Algorithm whose limits a proxy can use: it can't let a request wait for
// its start, and doesn't say when a request has ended.
type Algorithm quota.Algorithm

// UnmarshalText sets a to the algorithm of a name.
func (a *Algorithm) UnmarshalText(b []byte) error {
	parsed, err := quota.ParseAlgorithm(string(b))
	if err != nil || parsed.Queues() || parsed.Holds() {
		return errors.New("it must be fixed-window, sliding-window, sliding-log or token-bucket")
	}
	*a = Algorithm(parsed)
	return nil
}

// Replaced names a limit that another one replaces.
type Replaced struct{ Name string }

const countMustBe = "a whole number from 0 to 4294967295; 0 refuses every request, and unlimited: true allows every request"

// Count is a number of requests, from 0 to 4294967295.
type Count int64

// UnmarshalText sets c to a number in a form of YAML, such as 0x10.
func (c *Count) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 0, 32)
	if err != nil {
		return errors.New("it must be " + countMustBe)
	}
	*c = Count(n)
	return nil
}

// Unit is a unit of time, by its number in Envoy's rate limit service. The zero value is no unit.
type Unit uint8

// wrongUnit is the value of an invalid unit, which is a problem already.
const wrongUnit Unit = 255

const day = 24 * time.Hour

// units are the units, by their numbers. A month has 30 days, a year 365.
var units = []struct {
	name   string
	window time.Duration
}{{}, {"second", time.Second}, {"minute", time.Minute}, {"hour", time.Hour}, {"day", day}, {"month", 30 * day}, {"year", 365 * day}, {"week", 7 * day}}

const unitMustBe = "second, minute, hour, day, week, month or year"

// UnmarshalText sets u to the unit of a name.
func (u *Unit) UnmarshalText(b []byte) error {
	name := strings.ToLower(string(b))
	for i := range units {
		if i > 0 && units[i].name == name {
			*u = Unit(i)
			return nil
		}
	}
	*u = wrongUnit
	return errors.New("it must be " + unitMustBe)
}

// Window returns the length of a unit, or 0 if u is not a unit.
func (u Unit) Window() time.Duration {
	if int(u) >= len(units) {
		return 0
	}
	return units[u].window
}

// Parse reads the text of a file. The error has a line for each mistake, with the place, the
// value, and a valid one, and wraps quota.ErrInvalid. supports says which levels limits may
// have; if nil, consistency.Supports does.
func Parse(source string, text []byte, supports Supports) (*File, error) {
	if supports == nil {
		supports = consistency.Supports
	}
	f := &File{Source: source, supports: supports}
	if err := config.Decode(source, text, f); err != nil {
		return nil, err
	}
	return f, nil
}

// Sort sorts files by their names, the order that their patterns are tried in.
func Sort(files []*File) {
	slices.SortStableFunc(files, func(a, b *File) int { return strings.Compare(a.Source, b.Source) })
}
