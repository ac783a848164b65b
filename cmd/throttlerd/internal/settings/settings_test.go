package settings_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/throttler/quota"
)

func TestBackends(t *testing.T) {
	for environ, want := range map[string]string{
		"": "redis",
		"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis.internal:6379 REDIS_AUTH=weir:s3cret REDIS_TLS=true WEIR_REDIS_IDLE_TIMEOUT=4m":               "redis",
		"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis REDIS_AUTH=s3cret":                                                                            "redis",
		"REDIS_SOCKET_TYPE=tcp REDIS_TYPE=SENTINEL REDIS_URL=mymaster,10.0.0.1:26379,10.0.0.2:26379 REDIS_AUTH=p:q REDIS_SENTINEL_AUTH=r":    "redis",
		"REDIS_SOCKET_TYPE=tcp REDIS_TYPE=cluster REDIS_URL=10.0.0.1:7000,10.0.0.2:7000 LOCAL_CACHE_SIZE_IN_BYTES=1000 WEIR_ON_FAILURE=open": "redis",
		"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=10.0.0.1:11211,10.0.0.2:11211":                                                             "memcached",
		"BACKEND_TYPE=memory": "memory",
	} {
		s, err := settings.Read(strings.Fields(environ))
		if err != nil {
			t.Errorf("%s: %v", environ, err)
			continue
		}
		c, err := s.Config(&config.Options{})
		if err != nil || c.Backend != want {
			t.Errorf("%s: %v, %v; want %s", environ, c, err, want)
			continue
		}
		if err := c.Check(); err != nil {
			t.Errorf("%s: %v", environ, err)
		}
		if w := c.Warnings(); len(w) > 0 {
			t.Errorf("%s: warnings %q", environ, w)
		}
	}
}

func TestReadSaysAllThatIsWrong(t *testing.T) {
	for environ, want := range map[string]string{
		"PORT=x LIMIT_RESPONSE_HEADERS_ENABLED=maybe": `PORT is "x"; it must be a port, from 0 to 65535` + "\n" +
			`LIMIT_RESPONSE_HEADERS_ENABLED is "maybe"; it must be true or false`,
		"WEIR_ON_FAILURE=shut":                     `WEIR_ON_FAILURE is "shut"; it must be error, open, local or closed`,
		"REDIS_TYPE=RING LOG_LEVEL=loud":           `LOG_LEVEL is "loud"; it must be debug, info, warn or error` + "\n" + `REDIS_TYPE is "RING"; it must be SINGLE, SENTINEL or CLUSTER`,
		"REDIS_URL=redis:6379":                     "REDIS_SOCKET_TYPE is unix, and REDIS_URL is no path of a socket; set REDIS_SOCKET_TYPE=tcp for a host and a port",
		"REDIS_SOCKET_TYPE=tcp REDIS_URL=a:1,b:2":  "REDIS_URL has 2 servers; with REDIS_TYPE=SINGLE it must be one, or REDIS_TYPE must be CLUSTER, or SENTINEL for mymaster,10.0.0.1:26379,10.0.0.2:26379; WEIR_CONFIG is for several shards",
		"BACKEND_TYPE=memory CACHE_KEY_PREFIX={a}": `CACHE_KEY_PREFIX is "{a}"; it must be 1 to 64 letters, digits, and . _ - / :, such as staging:` + "\nCACHE_KEY_PREFIX is set, and counts live in memory, which no other process shares; leave it out",
		"BACKEND_TYPE=memcache":                    "MEMCACHE_HOST_PORT is missing; it must be a list of servers, such as 10.0.0.1:11211,10.0.0.2:11211",
		"WEIR_REDIS_IDLE_TIMEOUT=1ms":              "WEIR_REDIS_IDLE_TIMEOUT is 1ms; it must be from 1s to 24h0m0s, or 0s for the default",
		"WEIR_DEADLINE=0s":                         "WEIR_DEADLINE is 0s; it must be from 1ms to 30s",
		"GRPC_MAX_CONNECTION_AGE=1":                `GRPC_MAX_CONNECTION_AGE is "1"; it must be a duration with its unit, such as 50ms, 10s or 24h`,
		"GRPC_MAX_CONNECTION_AGE=-1s WEIR_DRAIN_WAIT=-1ms XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=-10s XDS_CLIENT_BACKOFF_MAX_INTERVAL=0s": "GRPC_MAX_CONNECTION_AGE is -1s; it must be 0s or more\n" +
			"WEIR_DRAIN_WAIT is -1ms; it must be 0s or more\nXDS_CLIENT_BACKOFF_INITIAL_INTERVAL is -10s; it must be 1ms or more\nXDS_CLIENT_BACKOFF_MAX_INTERVAL is 0s; it must be 1ms or more",
		"LIMIT_LIMIT_HEADER=a,b":                       `LIMIT_LIMIT_HEADER is "a,b"; it must be the name of a header, such as RateLimit-Limit`,
		"LIMIT_RESET_HEADER=ratelimit-remaining":       `LIMIT_RESET_HEADER is "ratelimit-remaining", as LIMIT_REMAINING_HEADER is; it must be another header`,
		"LOG_FORMAT=yaml LOCAL_CACHE_SIZE_IN_BYTES=-1": "LOCAL_CACHE_SIZE_IN_BYTES is -1; it must be 0 or more\nLOG_FORMAT is \"yaml\"; it must be text or json",
		"PROMETHEUS_PATH=metrics":                      `PROMETHEUS_PATH is "metrics"; it must be a path, such as /metrics`,
		"PROMETHEUS_PATH=/{x":                          `PROMETHEUS_PATH is "/{x"; it must be a path, such as /metrics`,
	} {
		_, err := settings.Read(strings.Fields(environ))
		if !errors.Is(err, quota.ErrInvalid) || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", environ, err, want)
		}
	}
}

// Each variable that looks like one of throttlerd is read, or there is a warning.
func TestEachVariableIsReadOrWarnedAbout(t *testing.T) {
	environ := strings.Fields(`CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=3s DISABLE_STATS=true MEMCACHE_MAX_IDLE_CONNS=2 MEMCACHE_SRV_REFRESH=1s
		MEMCACHE_TLS_CACERT=a MEMCACHE_TLS_CLIENT_CERT=a MEMCACHE_TLS_CLIENT_KEY=a MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true
		REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true REDIS_PERSECOND_AUTH=a REDIS_PERSECOND_PIPELINE_LIMIT=1 REDIS_PERSECOND_PIPELINE_WINDOW=1s
		REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR=x REDIS_PERSECOND_POOL_SIZE=1 REDIS_PERSECOND_SENTINEL_AUTH=a REDIS_PERSECOND_SOCKET_TYPE=tcp
		REDIS_PERSECOND_TIMEOUT=1s REDIS_PERSECOND_TLS=true REDIS_PERSECOND_TYPE=SINGLE REDIS_PERSECOND_URL=a REDIS_PIPELINE_LIMIT=8 STATSD_PORT=1
		STATS_FLUSH_INTERVAL=1s USE_DOG_STATSD_MOGRIFIERS=x XDS_CLIENT_BACKOFF_JITTER=true XDS_CLIENT_BACKOFF_RANDOM_FACTOR=0.5
		WEIR_COUNT_REFUSD=true REDIS_ULR=a`)
	s, err := settings.Read(environ)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(s.Warnings(environ), "\n")
	for _, v := range environ {
		if name, _, _ := strings.Cut(v, "="); !strings.Contains(got, name+" has no effect: ") {
			t.Errorf("no warning of %s in\n%s", name, got)
		}
	}
	if !strings.Contains(got, "WEIR_COUNT_REFUSD has no effect: it is no variable of throttlerd; did you mean WEIR_COUNT_REFUSED?") {
		t.Errorf("%s; want a suggestion", got)
	}
	others := strings.Fields("REDIS_PORT=tcp://10.0.0.1:6379 REDIS_SERVICE_HOST=10.0.0.1 REDIS_PORT_6379_TCP_ADDR=10.0.0.1 REDIS_SERVICE_PORT_REDIS=6379 WEIR_REDIS=a PATH=/bin HOST=a LIMIT_RESPONSE_HEADERS_ENABLED=true")
	if got := s.Warnings(others); len(got) > 0 {
		t.Errorf("%q; want no warnings", got)
	}
}

func TestWarnings(t *testing.T) {
	environ := []string{"USE_STATSD=false", "REDIS_PERSECOND=true", "REDIS_POOL_SIZE=10"}
	s, err := settings.Read(environ)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Warnings(environ), "\n"); !strings.HasPrefix(got, "REDIS_PERSECOND has no effect: ") || !strings.Contains(got, "\nREDIS_POOL_SIZE has no effect: ") || strings.Contains(got, "STATSD") {
		t.Errorf("warnings %q", got)
	}
	environ = []string{"BACKEND_TYPE=memory", "REDIS_URL=redis:6379", "MEMCACHE_HOST_PORT=a:1", "CONFIG_GRPC_XDS_NODE_ID=n"}
	if s, err = settings.Read(environ); err != nil {
		t.Fatal(err)
	}
	other := "CONFIG_GRPC_XDS_NODE_ID has no effect: CONFIG_TYPE is FILE\nMEMCACHE_HOST_PORT has no effect: BACKEND_TYPE is memory\nREDIS_URL has no effect: BACKEND_TYPE is memory"
	if got := strings.Join(s.Warnings(environ), "\n"); got != other {
		t.Errorf("of another backend, warnings %q; want %q", got, other)
	}
	for text, want := range map[string]string{
		"BACKEND_TYPE=memory REDIS_URL=a:1 MEMCACHE_HOST_PORT=b:1":                  "MEMCACHE_HOST_PORT has no effect: BACKEND_TYPE is memory\nREDIS_URL has no effect: BACKEND_TYPE is memory",
		"BACKEND_TYPE=memory LOCAL_CACHE_SIZE_IN_BYTES=9 WEIR_PROCESSES=3":          "LOCAL_CACHE_SIZE_IN_BYTES has no effect: BACKEND_TYPE is memory\nWEIR_PROCESSES has no effect: BACKEND_TYPE is memory",
		"REDIS_TLS_CACERT=/ca WEIR_PROCESSES=3 REDIS_SENTINEL_AUTH=x":               "REDIS_SENTINEL_AUTH has no effect: REDIS_TYPE is not SENTINEL\nREDIS_TLS_CACERT has no effect: REDIS_TLS is not true\nWEIR_PROCESSES has no effect: WEIR_ON_FAILURE is not local",
		"CONFIG_GRPC_XDS_SERVER_URL=a:1 LIMIT_LIMIT_HEADER=L PROMETHEUS_ADDR=:1":    "CONFIG_GRPC_XDS_SERVER_URL has no effect: CONFIG_TYPE is FILE\nLIMIT_LIMIT_HEADER has no effect: LIMIT_RESPONSE_HEADERS_ENABLED is not true\nPROMETHEUS_ADDR has no effect: USE_PROMETHEUS is not true",
		"WEIR_COMPATIBLE=true WEIR_RETRY_AFTER=true WEIR_COUNT_REFUSED=false":       "WEIR_COUNT_REFUSED has no effect: WEIR_COMPATIBLE is true\nWEIR_RETRY_AFTER has no effect: WEIR_COMPATIBLE is true",
		"SHADOW_MODE=true QUOTA_MODE=true":                                          "SHADOW_MODE is true: descriptors refuse no request",
		"WEIR_COMPATIBLE=true WEIR_RETRY_AFTER=false WEIR_COUNT_REFUSED=true":       "",
		"WEIR_ON_FAILURE=local WEIR_PROCESSES=3 REDIS_TLS=true REDIS_TLS_CACERT=/c": "",
		"BACKEND_TYPE=memory WEIR_ON_FAILURE=local":                                 "WEIR_ON_FAILURE has no effect: BACKEND_TYPE is memory",
		"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=a:1 RUNTIME_ROOT=/a RUNTIME_SUBDIRECTORY=b RUNTIME_APPDIRECTORY=c RUNTIME_WATCH_ROOT=false RUNTIME_IGNOREDOTFILES=true": "RUNTIME_APPDIRECTORY has no effect: CONFIG_TYPE is GRPC_XDS_SOTW\n" +
			"RUNTIME_IGNOREDOTFILES has no effect: CONFIG_TYPE is GRPC_XDS_SOTW\nRUNTIME_ROOT has no effect: CONFIG_TYPE is GRPC_XDS_SOTW\nRUNTIME_SUBDIRECTORY has no effect: CONFIG_TYPE is GRPC_XDS_SOTW\nRUNTIME_WATCH_ROOT has no effect: CONFIG_TYPE is GRPC_XDS_SOTW",
		"CONFIG_TYPE=FILE RUNTIME_ROOT=/a RUNTIME_WATCH_ROOT=false": "",
		"USE_PROMETHEUS=true PROMETHEUS_ADDR=:1 CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=a:1 LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_LIMIT_HEADER=L": "",
	} {
		environ := strings.Fields(text)
		s, err := settings.Read(environ)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.Warnings(environ), "\n"); got != want {
			t.Errorf("%s: %s\nwant %s", text, got, want)
		}
	}
	environ = []string{"WEIR_CONFIG=weir.yaml", "REDIS_URL=redis:6379", "REDIS_TIMEOUT=1s", "WEIR_ON_FAILURE=closed", "WEIR_RETRY_AFTER=false"}
	if s, err = settings.Read(environ); err != nil {
		t.Fatal(err)
	}
	want := "REDIS_TIMEOUT has no effect: WEIR_DEADLINE bounds the wait for each reply, and connecting may take 250 ms more\n" +
		"REDIS_URL has no effect: the file of WEIR_CONFIG says it\nWEIR_ON_FAILURE has little effect: while the store does not answer, on_failure in the file of WEIR_CONFIG decides"
	if got := strings.Join(s.Warnings(environ), "\n"); got != want {
		t.Errorf("with a file, warnings %q; want %q", got, want)
	}
}
