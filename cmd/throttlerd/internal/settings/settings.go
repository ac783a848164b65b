// Package settings reads the environment variables of throttlerd: all of
// envoyproxy/ratelimit, with their names, forms and defaults, and its own, which begin
// with WEIR_.
package settings

import (
	"errors"
	"log/slog"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/weir-go/weir/internal/invalid"
)

// Settings are the environment variables, by sections. The comments describe only the
// differences from envoyproxy/ratelimit.
type Settings struct {
	Listen
	TLS
	Files
	XDS
	Answers
	Backend
	Metrics
	Tracing

	LogLevel  string `env:"LOG_LEVEL" envDefault:"INFO"`
	LogFormat string `env:"LOG_FORMAT" envDefault:"text"`

	// ShowKeys shows the keys of refused clients in the log and on the page for operators, in
	// place of hashes: addresses, user names, secrets.
	ShowKeys bool `env:"WEIR_SHOW_KEYS" envDefault:"false"`

	// Operators is a file with a NAME:PASSWORD in each line. Those may change limits on the page
	// about one client, which only shows if there is none.
	Operators string `env:"WEIR_OPERATORS_FILE"`

	// DrainWait is how long the service reports NOT_SERVING before it stops accepting calls,
	// so that proxies that watch its health can leave.
	DrainWait time.Duration `env:"WEIR_DRAIN_WAIT" envDefault:"0s"`

	// DrainTimeout is how long the calls in flight may take after that.
	DrainTimeout time.Duration `env:"WEIR_DRAIN_TIMEOUT" envDefault:"10s"`
}

// Listen is where the service listens.
type Listen struct {
	Host      string `env:"HOST" envDefault:"0.0.0.0"`
	Port      uint16 `env:"PORT" envDefault:"8080"`
	DebugHost string `env:"DEBUG_HOST" envDefault:"0.0.0.0"`
	DebugPort uint16 `env:"DEBUG_PORT" envDefault:"6070"`
	GRPCHost  string `env:"GRPC_HOST" envDefault:"0.0.0.0"`
	GRPCPort  uint16 `env:"GRPC_PORT" envDefault:"8081"`
	GRPCUDS   string `env:"GRPC_UDS"`

	MaxConnectionAge      time.Duration `env:"GRPC_MAX_CONNECTION_AGE" envDefault:"24h"`
	MaxConnectionAgeGrace time.Duration `env:"GRPC_MAX_CONNECTION_AGE_GRACE" envDefault:"1h"`

	// HealthyOnceConfigured reports NOT_SERVING until a configuration has a domain.
	HealthyOnceConfigured bool `env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" envDefault:"false"`

	// HealthyAtOnce reports SERVING before there is a configuration: a management server may
	// have none until someone writes a limit.
	HealthyAtOnce bool `env:"FORCE_START_WITHOUT_INITIAL_CONFIG" envDefault:"false"`
}

// Files is where the files of descriptors are.
type Files struct {
	Root              string `env:"RUNTIME_ROOT" envDefault:"/srv/runtime_data/current"`
	Subdirectory      string `env:"RUNTIME_SUBDIRECTORY"`
	AppDirectory      string `env:"RUNTIME_APPDIRECTORY" envDefault:"config"`
	IgnoreDotFiles    bool   `env:"RUNTIME_IGNOREDOTFILES" envDefault:"false"`
	WatchRoot         bool   `env:"RUNTIME_WATCH_ROOT" envDefault:"true"`
	MergeDomainConfig bool   `env:"MERGE_DOMAIN_CONFIG" envDefault:"false"`
}

// XDS is the management server of the descriptors.
type XDS struct {
	ConfigType   string            `env:"CONFIG_TYPE" envDefault:"FILE"`
	NodeID       string            `env:"CONFIG_GRPC_XDS_NODE_ID" envDefault:"default"`
	NodeMetadata string            `env:"CONFIG_GRPC_XDS_NODE_METADATA"`
	ServerURL    string            `env:"CONFIG_GRPC_XDS_SERVER_URL" envDefault:"localhost:18000"`
	XDSHeaders   map[string]string `env:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"`

	UseTLS     bool   `env:"CONFIG_GRPC_XDS_SERVER_USE_TLS" envDefault:"false"`
	ClientCert string `env:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT"`
	ClientKey  string `env:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY"`
	ServerCA   string `env:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT"`
	ServerSAN  string `env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN"`

	BackoffInitial time.Duration `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" envDefault:"1s"`
	BackoffMax     time.Duration `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" envDefault:"60s"`
	MaxMessage     int           `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" envDefault:"0"`
}

// Answers says how the service answers.
type Answers struct {
	ShadowMode      bool   `env:"SHADOW_MODE" envDefault:"false"`
	QuotaMode       bool   `env:"QUOTA_MODE" envDefault:"false"`
	DynamicMetadata bool   `env:"RESPONSE_DYNAMIC_METADATA" envDefault:"false"`
	Headers         bool   `env:"LIMIT_RESPONSE_HEADERS_ENABLED" envDefault:"false"`
	LimitHeader     string `env:"LIMIT_LIMIT_HEADER" envDefault:"RateLimit-Limit"`
	RemainingHeader string `env:"LIMIT_REMAINING_HEADER" envDefault:"RateLimit-Remaining"`
	ResetHeader     string `env:"LIMIT_RESET_HEADER" envDefault:"RateLimit-Reset"`

	NearLimitRatio float64 `env:"NEAR_LIMIT_RATIO" envDefault:"0.8"`

	// Compatible answers, counts and reports errors like envoyproxy/ratelimit where throttlerd
	// differs on purpose. It sets CountRefused, and RetryAfter to false.
	Compatible bool `env:"WEIR_COMPATIBLE" envDefault:"false"`

	// RetryAfter adds Retry-After to refusals: when the same request would fit.
	RetryAfter bool `env:"WEIR_RETRY_AFTER" envDefault:"true"`

	// CountRefused charges refused requests, and charges each descriptor whether others refuse
	// or not, like envoyproxy/ratelimit.
	CountRefused bool `env:"WEIR_COUNT_REFUSED" envDefault:"false"`

	// OwnHitsReport charges a descriptor's own hits if they fit or not. It is set with a
	// management server: its descriptors can't say that they are reports.
	OwnHitsReport bool

	// StopIncrement charges nothing but the descriptors that are over, if some are. It has an
	// effect with Compatible: otherwise, refused requests charge nothing.
	StopIncrement bool `env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" envDefault:"false"`

	// LocalCacheBytes is the size of a cache of refusals. If zero, there is none.
	LocalCacheBytes int64 `env:"LOCAL_CACHE_SIZE_IN_BYTES" envDefault:"0"`

	// Deadline bounds a decision. A call with less time is answered before its own deadline.
	Deadline time.Duration `env:"WEIR_DEADLINE" envDefault:"50ms"`

	// OnFailure is the answer to a call while the store does not answer: error, for the proxy
	// to choose, open, local or closed.
	OnFailure Failure `env:"WEIR_ON_FAILURE" envDefault:"error"`
}

// Failure is an answer without a store.
type Failure string

// The answers.
const (
	FailError  Failure = "error"  // a gRPC error: the proxy's failure mode decides
	FailOpen   Failure = "open"   // OK
	FailLocal  Failure = "local"  // by this process's share of the quotas: see WEIR_PROCESSES
	FailClosed Failure = "closed" // OVER_LIMIT
)

// UnmarshalText sets f to one of the answers.
func (f *Failure) UnmarshalText(text []byte) error {
	*f = Failure(text)
	if !slices.Contains([]Failure{FailError, FailOpen, FailLocal, FailClosed}, *f) {
		return errors.New("it must be error, open, local or closed")
	}
	return nil
}

// Metrics is where Prometheus finds the metrics.
type Metrics struct {
	UsePrometheus  bool   `env:"USE_PROMETHEUS" envDefault:"false"`
	PrometheusAddr string `env:"PROMETHEUS_ADDR" envDefault:":9090"`
	PrometheusPath string `env:"PROMETHEUS_PATH" envDefault:"/metrics"`
}

// Read reads the environment, a list of NAME=VALUE as returned by os.Environ. The error lists
// all mistakes.
func Read(environ []string) (*Settings, error) {
	s, vars := new(Settings), env.ToMap(environ)
	var problems []error
	err := env.ParseWithOptions(s, env.Options{Environment: vars})
	if list := (env.AggregateError{}); errors.As(err, &list) {
		for _, e := range list.Errors {
			problems = append(problems, named(e, vars))
		}
	} else if err != nil {
		problems = append(problems, err)
	}
	if len(problems) == 0 { // otherwise a variable without a value would be reported twice
		problems = s.check()
	}
	s.OwnHitsReport = s.ConfigType != "FILE"
	if s.Compatible {
		s.CountRefused, s.RetryAfter = true, false
	}
	return s, errors.Join(problems...)
}

// named returns a problem with a variable, with its name and value.
func named(err error, vars map[string]string) error {
	var parse env.ParseError
	if !errors.As(err, &parse) {
		return err
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		if key := f.Tag.Get("env"); key != "" && f.Name == parse.Name {
			return invalid.Errorf("%s is %q; it must be %s", key, vars[key], right(f.Type, parse.Err))
		}
	}
	return invalid.Errorf("%v", parse)
}

// right says what a value of a type must be; err is its parser's error.
func right(t reflect.Type, err error) string {
	if form, ok := strings.CutPrefix(err.Error(), "it must be "); ok {
		return form
	}
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "a duration with its unit, such as 50ms, 10s or 24h"
	case reflect.TypeFor[uint16]():
		return "a port, from 0 to 65535"
	case reflect.TypeFor[bool]():
		return "true or false"
	case reflect.TypeFor[map[string]string]():
		return "a list such as name:value,name:value"
	}
	return "a number"
}

// mistakes are errors in variables.
type mistakes []error

// add adds a mistake if wrong is true.
func (p *mistakes) add(wrong bool, format string, args ...any) {
	if wrong {
		*p = append(*p, invalid.Errorf(format, args...))
	}
}

var headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

var pathForm = regexp.MustCompile(`^(/\w[\w.~-]*)*/?$`)

// check returns the mistakes of all values together.
func (s *Settings) check() (problems mistakes) {
	problems.add(s.ConfigType != "FILE" && s.ConfigType != "GRPC_XDS_SOTW", "CONFIG_TYPE is %q; it must be FILE or GRPC_XDS_SOTW", s.ConfigType)
	problems.add(s.Deadline < time.Millisecond || s.Deadline > 30*time.Second, "WEIR_DEADLINE is %v; it must be from 1ms to 30s", s.Deadline)
	for _, d := range []struct {
		name         string
		value, least time.Duration
	}{
		{"GRPC_MAX_CONNECTION_AGE", s.MaxConnectionAge, 0},
		{"GRPC_MAX_CONNECTION_AGE_GRACE", s.MaxConnectionAgeGrace, 0},
		{"WEIR_DRAIN_WAIT", s.DrainWait, 0},
		{"WEIR_DRAIN_TIMEOUT", s.DrainTimeout, 0},
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", s.BackoffInitial, time.Millisecond},
		{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", s.BackoffMax, time.Millisecond},
	} {
		problems.add(d.value < d.least, "%s is %v; it must be %v or more", d.name, d.value, d.least)
	}
	problems.add(!pathForm.MatchString(s.PrometheusPath), "PROMETHEUS_PATH is %q; it must be a path, such as /metrics", s.PrometheusPath)
	problems.add(!(s.NearLimitRatio > 0 && s.NearLimitRatio <= 1), "NEAR_LIMIT_RATIO is %v; it must be above 0 and at most 1", s.NearLimitRatio)
	names := []string{"LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"}
	for i, header := range []string{s.LimitHeader, s.RemainingHeader, s.ResetHeader} {
		problems.add(!headerForm.MatchString(header), "%s is %q; it must be the name of a header, such as RateLimit-Limit", names[i], header)
		for j, other := range []string{s.LimitHeader, s.RemainingHeader}[:i] {
			problems.add(strings.EqualFold(header, other), "%s is %q, as %s is; it must be another header", names[i], header, names[j])
		}
	}
	problems.add(s.LocalCacheBytes < 0, "LOCAL_CACHE_SIZE_IN_BYTES is %d; it must be 0 or more", s.LocalCacheBytes)
	problems.add(!slices.Contains([]string{"", "text", "json"}, strings.ToLower(s.LogFormat)), "LOG_FORMAT is %q; it must be text or json", s.LogFormat)
	if _, err := s.Level(); err != nil {
		problems = append(problems, err)
	}
	return slices.Concat(problems, s.TLS.check(), s.Tracing.check(), s.checkBackend())
}

// Level returns the log level, by the names of logrus, which envoyproxy/ratelimit uses.
func (s *Settings) Level() (slog.Level, error) {
	levels := map[string]slog.Level{
		"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"warning": slog.LevelWarn, "error": slog.LevelError, "fatal": slog.LevelError, "panic": slog.LevelError,
	}
	level, ok := levels[strings.ToLower(s.LogLevel)]
	if !ok {
		return 0, invalid.Errorf("LOG_LEVEL is %q; it must be debug, info, warn or error", s.LogLevel)
	}
	return level, nil
}

func address(host string, port uint16) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// HTTP returns the address of /json and /healthcheck.
func (l *Listen) HTTP() string { return address(l.Host, l.Port) }

// Debug returns the address of the pages for operators.
func (l *Listen) Debug() string { return address(l.DebugHost, l.DebugPort) }

// GRPC returns the network and the address of the rate limit service.
func (l *Listen) GRPC() (network, addr string) {
	if l.GRPCUDS != "" {
		return "unix", l.GRPCUDS
	}
	return "tcp", address(l.GRPCHost, l.GRPCPort)
}
