package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/valyala/fasthttp"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// envoyConfig is of an Envoy that asks a service about each request, and passes it on to a listener
// of its own: it asks nothing about requests that a route answers directly. Its arguments are the
// ports of Envoy, of that listener, of the service, and of the listener again. A request without an
// answer of the service is refused, so that it counts as an error.
const envoyConfig = `
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - name: bench
              domains: ["*"]
              routes: [{match: {prefix: /}, route: {cluster: application}}]
              rate_limits: [{actions: [{request_headers: {header_name: x-client, descriptor_key: a}}]}]
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: bench
              timeout: 1s
              failure_mode_deny: true
              rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: service}}}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  - address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: application
          route_config:
            virtual_hosts:
            - name: application
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: service
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: service
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}]}]
  - name: application
    load_assignment:
      cluster_name: application
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}]}]
`

// callEnvoy puts a load of HTTP requests on an Envoy in front of a service, and returns the costs of
// a request. Envoy shares the cores of the load. pids are the processes whose CPU time counts.
func (l *lab) callEnvoy(ctx context.Context, service *process, pids ...int) sample {
	addr := must(testserver.FindAddr())
	_, port, _ := net.SplitHostPort(addr)
	_, application, _ := net.SplitHostPort(must(testserver.FindAddr()))
	_, servicePort, _ := net.SplitHostPort(service.addr)
	config := filepath.Join(l.programs, "envoy.yaml")
	check(os.WriteFile(config, fmt.Appendf(nil, envoyConfig, port, application, servicePort, application), 0o600))
	envoy := exec.CommandContext(ctx, "envoy", "-c", config, "--use-dynamic-base-id", "--concurrency", fmt.Sprint(max(runtime.NumCPU()-1, 1)), "--log-level", "error")
	envoy.Stderr = &service.log
	check(envoy.Start())
	defer func() {
		_ = envoy.Process.Kill()
		_ = envoy.Wait()
	}()
	client := &fasthttp.HostClient{Addr: addr, MaxConns: l.connections}
	defer client.CloseIdleConnections()
	take := func(_ context.Context, key string) (bool, error) {
		request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		defer fasthttp.ReleaseRequest(request)
		defer fasthttp.ReleaseResponse(response)
		request.SetRequestURI("http://" + addr + "/")
		request.Header.Set("X-Client", key)
		err := client.Do(request, response)
		return response.StatusCode() == http.StatusOK, err
	}
	check(until(ctx, func(ctx context.Context) error {
		if allowed, err := take(ctx, "first"); err != nil || !allowed {
			return fmt.Errorf("waiting for Envoy: %w\n%s", err, service.log.String())
		}
		return nil
	}))
	return l.calls(ctx, take, pids)
}
