package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/cmd/throttlerd/internal/xds/xdstest"
	"github.com/weir-go/weir/internal/testkit/testserver"
)

// tree returns the configuration of a domain, in JSON, of a text. Each line is a descriptor,
// indented below its parent: key=value, and optionally a limit and modes.
func tree(t *testing.T, domain, text string) string {
	t.Helper()
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	depth := func(i int) int { return len(lines[i]) - len(strings.TrimLeft(lines[i], "\t")) }
	var all func(from, to int) string
	all = func(from, to int) string {
		var b strings.Builder
		for i := from; i < to; {
			end := i + 1
			for end < to && depth(end) > depth(i) {
				end++
			}
			words := strings.Fields(lines[i])
			key, value, _ := strings.Cut(words[0], "=")
			if i > from {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, `{"key": %q, "value": %q`, key, value)
			for _, word := range words[1:] {
				if n, unit, ok := strings.Cut(word, "/"); ok {
					fmt.Fprintf(&b, `, "rateLimit": {"requestsPerUnit": %s, "unit": %q}`, n, unit)
				} else {
					fmt.Fprintf(&b, `, %q: true`, word)
				}
			}
			fmt.Fprintf(&b, `, "descriptors": [%s]}`, all(i+1, end))
			i = end
		}
		return b.String()
	}
	return fmt.Sprintf(`{"name": %q, "domain": %[1]q, "descriptors": [%s]}`, domain, all(0, len(lines)))
}

// asked is a request, as Envoy sends it by the configuration that a gateway generates for its
// routes, and its answer. Its text has descriptors between bars, of key=value; +n are the
// descriptor's hits, and @n is its own limit for a year. Of several times, the last answer
// counts.
type asked struct {
	times  int
	domain string
	text   string
	want   string // OK or OVER, and the remaining units of each descriptor, or - without a limit
}

func (a *asked) request() *ratelimitv3.RateLimitRequest {
	req := &ratelimitv3.RateLimitRequest{Domain: a.domain}
	for _, part := range strings.Split(a.text, " | ") {
		d := new(commonv3.RateLimitDescriptor)
		for _, word := range strings.Fields(part) {
			if n, err := strconv.ParseUint(word[1:], 10, 32); err == nil && word[0] == '+' {
				d.HitsAddend = wrapperspb.UInt64(n)
			} else if err == nil && word[0] == '@' {
				d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n), Unit: typev3.RateLimitUnit_YEAR}
			} else {
				key, value, _ := strings.Cut(word, "=")
				d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
			}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

func inShort(resp *ratelimitv3.RateLimitResponse) string {
	text := map[bool]string{true: "OK", false: "OVER"}[resp.GetOverallCode() == ratelimitv3.RateLimitResponse_OK]
	for _, s := range resp.GetStatuses() {
		if s.GetCurrentLimit() == nil {
			text += " -"
			continue
		}
		text += fmt.Sprint(" ", s.GetLimitRemaining())
	}
	return text
}

// gateway is a generated configuration, the trees of its domains, and requests about it.
type gateway struct {
	name    string
	domains map[string]string
	asked   []asked
}

const (
	ai     = "ai-gateway-quota"
	openai = "backend_name=default/openai model_name_override=gpt-5"
)

// The trees are from internal/xds/translator/testdata/out/ratelimit-config of Envoy Gateway,
// and as internal/ratelimit/translator of Envoy AI Gateway generates them; the requests follow
// their routes' actions. Units are years, so that no window ends in the test.
var gateways = []gateway{
	{"headers, one count for each value", map[string]string{"first-listener": `
first-route=first-route
	rule-0-match-0 2/YEAR`}, []asked{
		{2, "first-listener", "first-route=first-route rule-0-match-0=alice", "OK 0"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice", "OVER 0"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=bob", "OK 1"},
		{1, "second-listener", "first-route=first-route rule-0-match-0=bob", "OK -"},
	}},
	{"addresses of a network, each alone, and all but another network", map[string]string{"first-listener": `
first-route=first-route
	masked_remote_address=192.168.0.0/16
		remote_address 2/YEAR
	masked_remote_address=invert:192.168.0.0/24 3/YEAR`}, []asked{
		{2, "first-listener", "first-route=first-route masked_remote_address=192.168.0.0/16 remote_address=192.168.1.1 | first-route=first-route masked_remote_address=invert:192.168.0.0/24", "OK 0 1"},
		{1, "first-listener", "first-route=first-route masked_remote_address=192.168.0.0/16 remote_address=192.168.1.1 | first-route=first-route masked_remote_address=invert:192.168.0.0/24", "OVER 0 1"},
		{1, "first-listener", "first-route=first-route masked_remote_address=192.168.0.0/16 remote_address=192.168.1.2", "OK 1"},
	}},
	{"several matches in shadow mode, next to a rule that refuses", map[string]string{"first-listener": `
first-route=first-route
	rule-0-match-0=rule-0-match-0 shadowMode
		rule-0-match-1=rule-0-match-1 shadowMode
			masked_remote_address=0.0.0.0/0 1/YEAR shadowMode
	rule-1-match--1=rule-1-match--1 3/YEAR`}, []asked{
		{3, "first-listener", "first-route=first-route rule-0-match-0=rule-0-match-0 rule-0-match-1=rule-0-match-1 masked_remote_address=0.0.0.0/0 | first-route=first-route rule-1-match--1=rule-1-match--1", "OK 0 0"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=rule-0-match-0 rule-0-match-1=rule-0-match-1 masked_remote_address=0.0.0.0/0 | first-route=first-route rule-1-match--1=rule-1-match--1", "OVER 0 0"},
	}},
	{"methods and paths, and all that a limit can have", map[string]string{"first-listener": `
first-route=first-route
	rule-0-method=rule-0-method 1/YEAR
	rule-1-path=rule-1-path 4294967295/YEAR`}, []asked{
		{1, "first-listener", "first-route=first-route rule-0-method=rule-0-method | first-route=first-route rule-1-path=rule-1-path", "OK 0 4294967294"},
		{1, "first-listener", "first-route=first-route rule-0-method=rule-0-method | first-route=first-route rule-1-path=rule-1-path", "OVER 0 4294967294"}, // neither is charged
		{1, "first-listener", "first-route=first-route rule-1-path=rule-1-path", "OK 4294967293"},
	}},
	{"rules of a policy that routes and listeners share, next to a route's", map[string]string{
		"first-listener": `
first-route=first-route
	rule-0-match-0=rule-0-match-0 3/YEAR`,
		"test-namespace/test-policy-1": `
test-namespace/test-policy-1/rule/0=test-namespace/test-policy-1/rule/0
	rule-0-match-0=rule-0-match-0 1/YEAR
test-namespace/test-policy-1/rule/1=test-namespace/test-policy-1/rule/1
	rule-1-match-0=rule-1-match-0 2/YEAR`}, []asked{
		{1, "test-namespace/test-policy-1", "test-namespace/test-policy-1/rule/0=test-namespace/test-policy-1/rule/0 rule-0-match-0=rule-0-match-0 | test-namespace/test-policy-1/rule/1=test-namespace/test-policy-1/rule/1 rule-1-match-0=rule-1-match-0", "OK 0 1"},
		{1, "test-namespace/test-policy-1", "test-namespace/test-policy-1/rule/0=test-namespace/test-policy-1/rule/0 rule-0-match-0=rule-0-match-0 | test-namespace/test-policy-1/rule/1=test-namespace/test-policy-1/rule/1 rule-1-match-0=rule-1-match-0", "OVER 0 1"},
		{3, "first-listener", "first-route=first-route rule-0-match-0=rule-0-match-0", "OK 0"},
	}},
	{"tokens that a response has cost: a check of 0 hits, and a report after the stream", map[string]string{"first-listener": `
first-route=first-route
	rule-0-match-0 1000/YEAR`}, []asked{
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice +0", "OK 1000"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice +900", "OK 100"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice +0", "OK 100"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice +900", "OVER 0"}, // and is charged
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice +0", "OVER 0"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=bob +0", "OK 1000"},
	}},
	{"tokens, with the limit of the request's metadata", map[string]string{"first-listener": `
first-route=first-route
	rule-0-match-0 10/YEAR`}, []asked{
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice +0 @100", "OK 100"},
		{2, "first-listener", "first-route=first-route rule-0-match-0=alice +60 @100", "OVER 0"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice +0 @100", "OVER 0"},
		{1, "first-listener", "first-route=first-route rule-0-match-0=alice +0", "OK 10"},
	}},
	{"AI Gateway: tokens of a model, and of a service for all others", map[string]string{ai: `
backend_name=default/openai
	model_name_override=gpt-5 1000/YEAR quotaMode
	model_name_override 50/YEAR quotaMode
backend_name=default/other
	model_name_override=gpt-5 1000/YEAR quotaMode`}, []asked{
		{1, ai, openai, "OK 999"},
		{2, ai, openai + " +600", "OVER 0"}, // the report of the second response is charged, too
		{1, ai, openai, "OVER 0"},
		{1, ai, openai + " | backend_name=default/other model_name_override=gpt-5", "OK 0 999"}, // one still has room
		{1, ai, "backend_name=default/openai model_name_override=gpt-4", "OK 49"},
		{1, ai, "backend_name=default/anthropic model_name_override=x", "OK -"},
	}},
	{"AI Gateway: buckets by headers, one in shadow mode, and the rest", map[string]string{ai: `
backend_name=default/openai
	model_name_override=gpt-5
		rule-0-x-team|blue-match-0=rule-0-x-team|blue-match-0
			rule-0-x-user-match-1 100/YEAR quotaMode
		rule-1-match-0=rule-1-match-0 10/YEAR quotaMode shadowMode
		rule-2-match--1=rule-2-match--1 300/YEAR quotaMode`}, []asked{
		{1, ai, openai + " rule-0-x-team|blue-match-0=rule-0-x-team|blue-match-0 rule-0-x-user-match-1=u | " + openai + " rule-1-match-0=rule-1-match-0 | " + openai + " rule-2-match--1=rule-2-match--1", "OK 99 9 299"},
		{1, ai, openai + " rule-1-match-0=rule-1-match-0 +150 | " + openai + " rule-2-match--1=rule-2-match--1 +150", "OK 0 149"},
		{1, ai, openai + " rule-2-match--1=rule-2-match--1", "OK 148"},
		{1, ai, openai + " rule-1-match-0=rule-1-match-0 +150 | " + openai + " rule-2-match--1=rule-2-match--1 +150", "OK 0 0"}, // shadow mode is never over
		{1, ai, openai + " rule-2-match--1=rule-2-match--1", "OVER 0"},
	}},
}

// Configurations that gateways generate are pushed one after the other to one process, which
// decides requests of Envoys. The process runs as in the deployment of Envoy Gateway, with
// mutual TLS, or as AI Gateway's own service, without.
func TestGateways(t *testing.T) {
	t.Parallel()                    // it waits most of the time
	files := testserver.RedisTLS(t) // for its certificates
	file := func(name string) string { return filepath.Join(filepath.Dir(files.CAFile), name) }
	pair, err := tls.LoadX509KeyPair(file("server.crt"), file("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(files.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(authority)
	for node, c := range map[string]struct {
		tls     *tls.Config
		environ []string
	}{
		"envoy-ratelimit": {&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}, []string{
			"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + files.CAFile, "CONFIG_GRPC_XDS_SERVER_TLS_SAN=" + testserver.ServerName,
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + files.CertFile, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + files.KeyFile,
			"RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false", "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
			"PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml", "LOG_LEVEL=info",
		}},
		"envoy-ai-gateway-ratelimit": {},
	} {
		t.Run(node, func(t *testing.T) {
			m := xdstest.NewManager(t, node)
			m.TLS = c.tls
			addr := m.Listen("127.0.0.1:0")
			m.Put("0")
			d := started(t, "", append(c.environ, "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID="+node, "CONFIG_GRPC_XDS_SERVER_URL="+addr, "FORCE_START_WITHOUT_INITIAL_CONFIG=true")...)
			d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
			for i := range gateways {
				d.asGateway(m, i)
			}
			if wrong := m.Refused(); wrong != "" {
				t.Errorf("the service refused what gateways generate: %s", wrong)
			}
		})
	}
}

// The ports are open when the first configuration of a management server is in force.
func TestFirstConfigurationOfAManagementServer(t *testing.T) {
	m := xdstest.NewManager(t, "default")
	addr := m.Listen("127.0.0.1:0")
	m.Put("1", tree(t, "d", "user 3/YEAR"))
	d := started(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+addr)
	if remaining, err := d.ask("alice"); remaining != 2 || err != nil {
		t.Errorf("%d remain, %v; want 2", remaining, err)
	}
}

// asGateway publishes the configuration of gateways[i], under its own domains, and asks.
func (d *daemon) asGateway(m *xdstest.Manager, i int) {
	d.t.Helper()
	g := &gateways[i]
	mark := fmt.Sprint("/", i)
	ready := tree(d.t, "ready"+mark, "now 1/YEAR")
	configs := []string{ready}
	for domain, text := range g.domains {
		configs = append(configs, tree(d.t, domain+mark, text))
	}
	m.Put(fmt.Sprint(i+1), configs...)
	eventually(d.t, func() error {
		resp, err := d.rls.ShouldRateLimit(d.t.Context(), (&asked{domain: "ready" + mark, text: "now=1 +0"}).request())
		if err == nil && resp.GetStatuses()[0].GetCurrentLimit() == nil {
			err = fmt.Errorf("%s is not in force", g.name)
		}
		return err
	})
	for _, a := range g.asked {
		req := a.request()
		req.Domain += mark
		got := ""
		for range a.times {
			resp, err := d.rls.ShouldRateLimit(d.t.Context(), req)
			if err != nil {
				d.t.Fatal(err)
			}
			got = inShort(resp)
		}
		if got != a.want {
			d.t.Errorf("%s: %s: %s; want %s", g.name, a.text, got, a.want)
		}
	}
}
