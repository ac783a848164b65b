// Package xdstest provides a management server for tests.
package xdstest

import (
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
)

// Manager is a management server, built like Envoy Gateway's.
type Manager struct {
	Node string      // the node that it has configurations for
	TLS  *tls.Config // if nil, plain text

	t       *testing.T
	cache   cache.SnapshotCache
	grpc    *grpc.Server
	mu      sync.Mutex
	refused []string
}

// NewManager returns a server that does not listen yet.
func NewManager(t *testing.T, node string) *Manager {
	return &Manager{Node: node, t: t, cache: cache.NewSnapshotCache(false, cache.IDHash{}, nil)}
}

// Listen serves at addr until Stop, or the end of the test, and returns the address.
func (m *Manager) Listen(addr string) string {
	m.t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		m.t.Fatal(err)
	}
	var options []grpc.ServerOption
	if m.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(m.TLS)))
	}
	m.grpc = grpc.NewServer(options...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(m.grpc, server.NewServer(m.t.Context(), m.cache, server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, req *discoveryv3.DiscoveryRequest) error {
			if req.GetErrorDetail() != nil {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.refused = append(m.refused, req.GetErrorDetail().GetMessage())
			}
			return nil
		},
	}))
	go func() { _ = m.grpc.Serve(l) }()
	m.t.Cleanup(m.grpc.Stop)
	return l.Addr().String()
}

// Stop stops the server.
func (m *Manager) Stop() { m.grpc.Stop() }

// Refused returns the errors of the versions that were refused, one a line.
func (m *Manager) Refused() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.refused, "\n")
}

// Put publishes configurations, given as JSON.
func (m *Manager) Put(version string, configs ...string) {
	m.t.Helper()
	var list []types.Resource
	for _, text := range configs {
		c := new(rlsconfv3.RateLimitConfig)
		if err := protojson.Unmarshal([]byte(text), c); err != nil {
			m.t.Fatal(err)
		}
		list = append(list, c)
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: list})
	if err == nil {
		err = m.cache.SetSnapshot(m.t.Context(), m.Node, snapshot)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}
