package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"
)

// without are variables of envoyproxy/ratelimit that have no effect here, and why.
var without = map[string]string{
	"USE_STATSD":                              "metrics are Prometheus' alone",
	"USE_DOG_STATSD":                          "metrics are Prometheus' alone",
	"STATSD_HOST":                             "metrics are Prometheus' alone",
	"PROMETHEUS_MAPPER_YAML":                  "the names of metrics are fixed",
	"EXTRA_TAGS":                              "labels are added where metrics are scraped",
	"REDIS_PERSECOND":                         "limits of a second are counted with the others; for more servers, WEIR_CONFIG has shards",
	"REDIS_PIPELINE_WINDOW":                   "concurrent decisions share round trips without waiting for each other",
	"REDIS_POOL_SIZE":                         "the pool grows as it is needed",
	"REDIS_TIMEOUT":                           "WEIR_DEADLINE bounds each decision, connecting included",
	"REDIS_POOL_ON_EMPTY_BEHAVIOR":            "WEIR_DEADLINE bounds each decision",
	"CACHE_KEY_PREFIX":                        "keys begin with weir:",
	"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "refused requests charge nothing unless WEIR_COUNT_REFUSED is set",
	"EXPIRATION_JITTER_MAX_SECONDS":           "counts expire a second after their windows",
}

// Warnings names the variables that are set and have no effect.
func (s *Settings) Warnings(environ []string) (all []string) {
	vars := env.ToMap(environ)
	for name, why := range without {
		if value, set := vars[name]; set && value != "" && !strings.EqualFold(value, "false") {
			all = append(all, fmt.Sprintf("%s has no effect: %s", name, why))
		}
	}
	slices.Sort(all)
	return all
}
