package xds_test

import (
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/cmd/throttlerd/internal/xds"
	"github.com/weir-go/weir/config/envoyfile"
)

// scripted is a server that sends the responses of a test, and passes the requests on.
type scripted struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	responses chan *discoveryv3.DiscoveryResponse
	answers   chan *discoveryv3.DiscoveryRequest
}

func (s *scripted) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	for resp := range s.responses {
		if err := stream.Send(resp); err != nil {
			return err
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		s.answers <- answer
	}
	<-stream.Context().Done()
	return nil
}

// response returns a response with resources: messages, or texts in place of their wire form.
func response(t *testing.T, version, typeURL string, resources ...any) *discoveryv3.DiscoveryResponse {
	t.Helper()
	resp := &discoveryv3.DiscoveryResponse{VersionInfo: version, Nonce: "nonce " + version, TypeUrl: typeURL}
	for _, r := range resources {
		a := &anypb.Any{TypeUrl: xds.TypeURL}
		switch r := r.(type) {
		case string:
			a.Value = []byte(r)
		case proto.Message:
			var err error
			if a, err = anypb.New(r); err != nil {
				t.Fatal(err)
			}
		}
		resp.Resources = append(resp.Resources, a)
	}
	return resp
}

// A server gets an error for any invalid response, and the last good configuration stays in
// force.
func TestGarbage(t *testing.T) {
	of := func(domain string, all ...*rlsconfv3.RateLimitDescriptor) *rlsconfv3.RateLimitConfig {
		return &rlsconfv3.RateLimitConfig{Name: domain, Domain: domain, Descriptors: all}
	}
	limit := func(key string, unit rlsconfv3.RateLimitUnit) *rlsconfv3.RateLimitDescriptor {
		return &rlsconfv3.RateLimitDescriptor{Key: key, RateLimit: &rlsconfv3.RateLimitPolicy{RequestsPerUnit: 1, Unit: unit}}
	}
	good := of("d", limit("a", rlsconfv3.RateLimitUnit_WEEK))
	steps := []struct {
		resp *discoveryv3.DiscoveryResponse
		want string // the problem, or "" if it is put in force
	}{
		{response(t, "1", xds.TypeURL, good), ""},
		{response(t, "2", "type.googleapis.com/envoy.config.listener.v3.Listener"), `the type of the resources is "type.googleapis.com/envoy.config.listener.v3.Listener"; it must be ` + xds.TypeURL},
		{response(t, "3", xds.TypeURL, "\xff\xff\xff"), "a resource is no RateLimitConfig"},
		{response(t, "4", xds.TypeURL, "\x0a\x02\xff\xff"), "a resource is no RateLimitConfig"}, // a name that is not UTF-8
		{response(t, "5", xds.TypeURL, &discoveryv3.DiscoveryRequest{}), "a resource is no RateLimitConfig"},
		{response(t, "6", xds.TypeURL, ""), "domain is wrong; it must be the name of a domain"},
		{response(t, "7", xds.TypeURL, good, good), `domain is "d", as in d`},
		{response(t, "8", xds.TypeURL, good, of("e", limit("", rlsconfv3.RateLimitUnit_DAY), limit("a", 255), limit("a", -5))), "e: descriptors[0].key is wrong"},
		{response(t, "9", xds.TypeURL, of("e", limit("a", 255))), "e: descriptors[0].rate_limit.unit is wrong"},
		{response(t, "10", xds.TypeURL, of("e", nil, &rlsconfv3.RateLimitDescriptor{})), "e: descriptors[0].key is wrong"},
		{response(t, "10", xds.TypeURL, of("e", limit("", rlsconfv3.RateLimitUnit_DAY))), "e: descriptors[0].key is wrong"},
		{response(t, "10", xds.TypeURL, good), ""}, // valid content under a version that was refused
		{response(t, "11", xds.TypeURL, ""), "domain is wrong"},
		{response(t, "11", xds.TypeURL, ""), "domain is wrong"}, // equal content is not read again
		{response(t, "", xds.TypeURL, good), ""},
	}
	server := &scripted{responses: make(chan *discoveryv3.DiscoveryResponse), answers: make(chan *discoveryv3.DiscoveryRequest)}
	defer close(server.responses)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, server)
	go func() { _ = g.Serve(l) }()
	defer g.Stop()

	var current atomic.Pointer[descriptors.Set]
	var applied atomic.Int64
	c, err := xds.NewClient(settings.XDS{ServerURL: l.Addr().String(), BackoffInitial: time.Second, BackoffMax: time.Second}, slog.New(slog.DiscardHandler), func(all []*envoyfile.File, err error) error {
		applied.Add(1)
		var next *descriptors.Set
		if err == nil {
			next, err = descriptors.New(all, false, false)
		}
		if err == nil {
			current.Store(next)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go c.Watch(t.Context())
	version := ""
	for _, s := range steps {
		server.responses <- s.resp
		answer := <-server.answers
		if s.want == "" {
			version = s.resp.GetVersionInfo()
		}
		if got := answer.GetErrorDetail().GetMessage(); (s.want == "") != (answer.GetErrorDetail() == nil) || !strings.Contains(got, s.want) {
			t.Errorf("version %s: %q; want %q", s.resp.GetVersionInfo(), got, s.want)
		}
		if answer.GetVersionInfo() != version || answer.GetResponseNonce() != s.resp.GetNonce() || answer.GetTypeUrl() != xds.TypeURL {
			t.Errorf("version %s is answered by %v", s.resp.GetVersionInfo(), answer)
		}
		if set := current.Load(); len(set.Rules()) != 1 || set.Rules()[0].Path != "d.a" {
			t.Errorf("version %s: the rules are %v", s.resp.GetVersionInfo(), set.Rules())
		}
	}
	if n := int(applied.Load()); n != len(steps)-1 {
		t.Errorf("%d responses were looked at; want all of %d but one", n, len(steps))
	}
}
