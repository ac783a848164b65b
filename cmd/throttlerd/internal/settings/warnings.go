package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"
)

// without maps variables of envoyproxy/ratelimit that have no effect here to the reasons.
var without = map[string]string{
	"USE_STATSD":                              "metrics are Prometheus' alone",
	"USE_DOG_STATSD":                          "metrics are Prometheus' alone",
	"STATSD_HOST":                             "metrics are Prometheus' alone",
	"PROMETHEUS_MAPPER_YAML":                  "the names of metrics are fixed",
	"EXTRA_TAGS":                              "labels are added where metrics are scraped",
	"REDIS_PERSECOND":                         "limits of a second are counted with the others; for more servers, WEIR_CONFIG has shards",
	"REDIS_PIPELINE_WINDOW":                   "concurrent decisions share round trips without waiting for each other",
	"REDIS_POOL_SIZE":                         "the pool grows as it is needed",
	"REDIS_TIMEOUT":                           "WEIR_DEADLINE bounds the wait for each reply, and connecting may take 250 ms more",
	"REDIS_POOL_ON_EMPTY_BEHAVIOR":            "WEIR_DEADLINE bounds each decision",
	"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "refused requests charge nothing unless WEIR_COUNT_REFUSED is set",
	"EXPIRATION_JITTER_MAX_SECONDS":           "counts expire a second after their windows",
}

// withFile are names, or prefixes, of variables that the file of WEIR_CONFIG replaces.
var withFile = []string{"BACKEND_TYPE", "REDIS_", "MEMCACHE_HOST_PORT", "LOCAL_CACHE_SIZE_IN_BYTES", "CACHE_KEY_PREFIX", "WEIR_PROCESSES", "WEIR_REDIS_", "WEIR_SEED"}

// Warnings names the variables that are set, but have no effect or less than they seem to.
func (s *Settings) Warnings(environ []string) (all []string) {
	vars := env.ToMap(environ)
	for name, why := range without {
		if value, set := vars[name]; set && value != "" && !strings.EqualFold(value, "false") {
			all = append(all, fmt.Sprintf("%s has no effect: %s", name, why))
		}
	}
	for name, value := range vars {
		is := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if s.ConfigFile != "" && value != "" && without[name] == "" && slices.ContainsFunc(withFile, is) {
			all = append(all, name+" has no effect: the file of WEIR_CONFIG says it")
		}
	}
	if s.ConfigFile != "" && vars["WEIR_ON_FAILURE"] != "" {
		all = append(all, "WEIR_ON_FAILURE has little effect: while the store does not answer, on_failure in the file of WEIR_CONFIG decides")
	}
	if s.ShowKeys {
		all = append(all, fmt.Sprintf("WEIR_SHOW_KEYS is set: the log, and /debug/weir on %s for everyone who reaches it, show the keys of refused clients, such as addresses, user names and API keys", s.Debug()))
	}
	slices.Sort(all)
	return all
}
