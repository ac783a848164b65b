// Package descriptors reads the configuration of a rate limit service, in the form of
// envoyproxy/ratelimit, and finds the rule of each descriptor of a request.
package descriptors

import (
	"errors"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/fleet/modes"
	"github.com/weir-go/weir/quota"
)

// File is what a file says of a domain.
type File struct {
	Name        text // of what generated it; it has no effect
	Domain      text
	Descriptors []Descriptor

	name     string // of the file, for problems
	supports Supports
}

// Supports returns why a policy cannot be in a mode, or nil.
type Supports func(p *quota.Policy, m modes.Mode) error

// Descriptor is a key, or a key and a value, under which there is a limit, or there are
// further descriptors.
type Descriptor struct {
	Key   text
	Value text // may have any number of '*', each for 0 and more characters

	RateLimit      *RateLimit
	ShadowMode     boolean
	QuotaMode      boolean
	DetailedMetric boolean
	ValueToMetric  boolean
	ShareThreshold boolean
	Metadata       yaml.Node
	Descriptors    []Descriptor

	metadata *structpb.Struct // made of Metadata, or an xDS configuration's
}

// RateLimit is the limit of a descriptor. What follows Replaces is weir's own.
type RateLimit struct {
	Unit            unit
	RequestsPerUnit count
	Unlimited       boolean
	Name            text
	Replaces        []replaced

	// Algorithm is how requests are counted. The zero value is a fixed window that begins
	// on multiples of the unit since the epoch, as envoyproxy/ratelimit counts.
	Algorithm quota.Algorithm

	// Burst is the capacity of a bucket. If zero, RequestsPerUnit.
	Burst int64

	// Report charges whatever a request reports, room or no room, and lets checks with 0
	// hits decide: for costs that are known after the response.
	Report boolean

	// Mode is where decisions are made: by the store, the zero value, or in this process.
	Mode mode
}

// mode is a modes.Mode.
type mode modes.Mode

func (m *mode) UnmarshalText(b []byte) error {
	if (*modes.Mode)(m).UnmarshalText(b) != nil {
		return errors.New("it must be exact, leased or synced")
	}
	return nil
}

type replaced struct{ Name text }

// text is what YAML has as a scalar, empty or not.
type text string

func (t *text) UnmarshalText(b []byte) error { *t = text(b); return nil }

// boolean is true or false in any of the words that YAML 1.1 has for it.
type boolean bool

func (v *boolean) UnmarshalText(b []byte) error {
	switch strings.ToLower(string(b)) {
	case "true", "yes", "on", "y":
		*v = true
	case "false", "no", "off", "n":
		*v = false
	default:
		return errors.New("it must be true or false")
	}
	return nil
}

// count is a number of requests, from 0 on.
type count int64

func (c *count) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 0, 32) // 0x10 too, as YAML has it
	if err != nil {
		return errors.New("it must be a whole number from 0 to 4294967295; 0 refuses every request, and unlimited: true none")
	}
	*c = count(n)
	return nil
}

// unit is a unit of time. Its zero value is none.
type unit uint8

// wrongUnit is the value of one that is no unit, and is a problem already.
const wrongUnit unit = 255

const unitMustBe = "second, minute, hour, day, week, month or year"

func (u *unit) UnmarshalText(b []byte) error {
	n := ratelimitv3.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(string(b))]
	if n == 0 {
		*u = wrongUnit
		return errors.New("it must be " + unitMustBe)
	}
	*u = unit(n)
	return nil
}

const day = 24 * time.Hour

// Window returns how long a unit is, or 0 if it is none: months have 30 days, years 365.
func Window(u ratelimitv3.RateLimitResponse_RateLimit_Unit) time.Duration {
	switch u {
	case ratelimitv3.RateLimitResponse_RateLimit_SECOND:
		return time.Second
	case ratelimitv3.RateLimitResponse_RateLimit_MINUTE:
		return time.Minute
	case ratelimitv3.RateLimitResponse_RateLimit_HOUR:
		return time.Hour
	case ratelimitv3.RateLimitResponse_RateLimit_DAY:
		return day
	case ratelimitv3.RateLimitResponse_RateLimit_WEEK:
		return 7 * day
	case ratelimitv3.RateLimitResponse_RateLimit_MONTH:
		return 30 * day
	case ratelimitv3.RateLimitResponse_RateLimit_YEAR:
		return 365 * day
	default:
		return 0
	}
}

// Parse reads the text of a file. The error has a line for each mistake, with the place,
// the value, and what would be right, and wraps quota.ErrInvalid. Supports says which modes
// limits may have; if nil, all that can be.
func Parse(name string, text []byte, supports Supports) (*File, error) {
	if supports == nil {
		supports = modes.Supports
	}
	f := &File{name: name, supports: supports}
	if err := config.Decode(name, text, f); err != nil {
		return nil, err
	}
	return f, nil
}
