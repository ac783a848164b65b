package settings

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caarlos0/env/v11"

	"github.com/weir-go/weir/config"
)

// withoutEffect maps variables of envoyproxy/ratelimit that have no effect here to the reasons.
var withoutEffect = map[string]string{
	"USE_STATSD":                                    "metrics are Prometheus' alone",
	"USE_DOG_STATSD":                                "metrics are Prometheus' alone",
	"STATSD_HOST":                                   "metrics are Prometheus' alone",
	"STATSD_PORT":                                   "metrics are Prometheus' alone",
	"STATS_FLUSH_INTERVAL":                          "metrics are Prometheus' alone",
	"USE_DOG_STATSD_MOGRIFIERS":                     "metrics are Prometheus' alone",
	"DISABLE_STATS":                                 "metrics are always counted",
	"PROMETHEUS_MAPPER_YAML":                        "the names of metrics are fixed",
	"EXTRA_TAGS":                                    "labels are added where metrics are scraped",
	"REDIS_PERSECOND":                               "limits of a second are counted with the others; for more servers, WEIR_CONFIG has shards",
	"REDIS_PIPELINE_LIMIT":                          "concurrent decisions share round trips, as many as wait",
	"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION":          "the health does not depend on Redis: WEIR_ON_FAILURE decides while it does not answer",
	"MEMCACHE_MAX_IDLE_CONNS":                       "connections to Memcached are kept as they are needed",
	"MEMCACHE_SRV_REFRESH":                          "MEMCACHE_HOST_PORT lists the servers",
	"MEMCACHE_TLS_CACERT":                           "connections to Memcached are without TLS",
	"MEMCACHE_TLS_CLIENT_CERT":                      "connections to Memcached are without TLS",
	"MEMCACHE_TLS_CLIENT_KEY":                       "connections to Memcached are without TLS",
	"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION":       "connections to Memcached are without TLS",
	"XDS_CLIENT_BACKOFF_JITTER":                     "waits for the management server are always spread",
	"XDS_CLIENT_BACKOFF_RANDOM_FACTOR":              "waits for the management server are always spread",
	"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL": "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL bound the waits",
	"REDIS_PIPELINE_WINDOW":                         "concurrent decisions share round trips without waiting for each other",
	"REDIS_POOL_SIZE":                               "the pool grows as it is needed",
	"REDIS_TIMEOUT":                                 "WEIR_DEADLINE bounds the wait for each reply, and connecting may take 250 ms more",
	"REDIS_POOL_ON_EMPTY_BEHAVIOR":                  "WEIR_DEADLINE bounds each decision",
	"EXPIRATION_JITTER_MAX_SECONDS":                 "counts expire a second after their windows",
}

// families are the beginnings of variables that are throttlerd's or envoyproxy/ratelimit's alone.
var families = []string{"WEIR_", "REDIS_", "MEMCACHE_", "RUNTIME_", "CONFIG_GRPC_XDS_", "XDS_CLIENT_", "LIMIT_", "STATSD_"}

// ofKubernetes matches the variables that Kubernetes makes of a service, such as one named redis.
var ofKubernetes = regexp.MustCompile(`_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP)\w*)?$`)

// variables are the names of all variables that are read.
var variables = func() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		if name := f.Tag.Get("env"); name != "" {
			names = append(names, name)
		}
	}
	return names
}()

// unknown returns why a variable that looks like one of throttlerd has no effect, or "".
func unknown(name string) string {
	switch {
	case strings.HasPrefix(name, "REDIS_PERSECOND"):
		if name == "REDIS_PERSECOND" {
			return "" // withoutEffect has it
		}
		return withoutEffect["REDIS_PERSECOND"]
	case slices.Contains(variables, name), withoutEffect[name] != "", name == "WEIR_REDIS", ofKubernetes.MatchString(name):
		return ""
	case !slices.ContainsFunc(families, func(prefix string) bool { return strings.HasPrefix(name, prefix) }):
		return ""
	}
	if near := config.Nearest(name, variables); near != "" {
		return "it is no variable of throttlerd; did you mean " + near + "?"
	}
	return "it is no variable of throttlerd"
}

// withFile are names, or prefixes, of variables that the file of WEIR_CONFIG replaces.
var withFile = []string{"BACKEND_TYPE", "REDIS_", "MEMCACHE_HOST_PORT", "LOCAL_CACHE_SIZE_IN_BYTES", "CACHE_KEY_PREFIX", "WEIR_PROCESSES", "WEIR_REDIS_", "WEIR_SEED"}

// unused returns why a variable with a value has no effect next to others, or "".
func (s *Settings) unused(name, value string) string {
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	if s.ConfigFile != "" && slices.ContainsFunc(withFile, begins) {
		return "the file of WEIR_CONFIG says it"
	}
	if !slices.Contains(variables, name) {
		return ""
	}
	set, _ := strconv.ParseBool(value)
	backend := cmp.Or(s.BackendType, "redis")
	for _, row := range []struct {
		holds     bool
		reason    string
		variables []string // or their prefixes
	}{
		{backend != "redis", "BACKEND_TYPE is " + backend, []string{"REDIS_"}},
		{backend != "memcache", "BACKEND_TYPE is " + backend, []string{"MEMCACHE_"}},
		{s.ConfigType == "FILE", "CONFIG_TYPE is FILE", []string{"CONFIG_GRPC_XDS_", "XDS_CLIENT_"}},
		{s.ConfigFile == "" && backend == "memory", "BACKEND_TYPE is memory", []string{"LOCAL_CACHE_SIZE_IN_BYTES", "WEIR_PROCESSES", "WEIR_SEED"}},
		{s.ConfigFile == "" && backend == "memory" && s.OnFailure == FailLocal, "BACKEND_TYPE is memory", []string{"WEIR_ON_FAILURE"}},
		{s.ConfigFile == "" && s.OnFailure != FailLocal, "WEIR_ON_FAILURE is not local", []string{"WEIR_PROCESSES"}},
		{s.ConfigType != "FILE", "CONFIG_TYPE is " + s.ConfigType, []string{"RUNTIME_"}},
		{!s.RedisTLS, "REDIS_TLS is not true", []string{"REDIS_TLS_"}},
		{!strings.EqualFold(s.RedisType, "sentinel"), "REDIS_TYPE is not SENTINEL", []string{"REDIS_SENTINEL_AUTH"}},
		{!s.Headers, "LIMIT_RESPONSE_HEADERS_ENABLED is not true", []string{"LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"}},
		{!s.UsePrometheus, "USE_PROMETHEUS is not true", []string{"PROMETHEUS_"}},
		{s.Compatible && set, "WEIR_COMPATIBLE is true", []string{"WEIR_RETRY_AFTER"}},
		{s.Compatible && !set, "WEIR_COMPATIBLE is true", []string{"WEIR_COUNT_REFUSED"}},
	} {
		if row.holds && slices.ContainsFunc(row.variables, begins) {
			return row.reason
		}
	}
	return ""
}

// Warnings names the variables that are set, but have no effect or less than they seem to.
func (s *Settings) Warnings(environ []string) (list []string) {
	vars := env.ToMap(environ)
	for name, reason := range withoutEffect {
		if value, set := vars[name]; set && value != "" && !strings.EqualFold(value, "false") {
			list = append(list, fmt.Sprintf("%s has no effect: %s", name, reason))
		}
	}
	for name, value := range vars {
		if reason := s.unused(name, value); reason != "" && value != "" && withoutEffect[name] == "" {
			list = append(list, name+" has no effect: "+reason)
		}
	}
	for name := range vars {
		if reason := unknown(name); reason != "" && vars[name] != "" {
			list = append(list, name+" has no effect: "+reason)
		}
	}
	if s.ConfigFile != "" && vars["WEIR_ON_FAILURE"] != "" {
		list = append(list, "WEIR_ON_FAILURE has little effect: while the store does not answer, on_failure in the file of WEIR_CONFIG decides")
	}
	if s.StopIncrement && !s.Compatible {
		list = append(list, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT has no effect: refused requests charge nothing unless WEIR_COUNT_REFUSED or WEIR_COMPATIBLE is set")
	}
	if s.ShadowMode {
		list = append(list, "SHADOW_MODE is true: descriptors refuse no request")
	}
	if s.ShowKeys {
		list = append(list, fmt.Sprintf("WEIR_SHOW_KEYS is set: the log, and /debug/weir on %s for everyone who reaches it, show the keys of refused clients, such as addresses, user names and API keys", s.Debug()))
	}
	slices.Sort(list)
	return list
}
