// Package xds receives the configuration of a rate limit service from a management server,
// such as Envoy Gateway: aggregated discovery, state of the world.
package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/internal/invalid"
)

// TypeURL is the type of the resources.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Client watches a management server.
type Client struct {
	settings settings.XDS
	conn     *grpc.ClientConn
	log      *slog.Logger

	// apply puts a configuration in force, or returns its mistakes: see Watch.
	apply func(list []*envoyfile.File, err error) error

	first chan struct{} // closed after the first call of apply
	once  sync.Once
}

// NewClient returns a client that has not connected yet. Close it.
func NewClient(s settings.XDS, log *slog.Logger, apply func(list []*envoyfile.File, err error) error) (*Client, error) {
	creds := insecure.NewCredentials()
	if s.UseTLS {
		config, err := tlsConfig(s)
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		// Pings find a server that has vanished silently. Servers in Go refuse pings that are
		// less than five minutes apart.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 20 * time.Second}),
	}
	if s.MaxMessage > 0 {
		options = append(options, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(s.MaxMessage)))
	}
	conn, err := grpc.NewClient(s.ServerURL, options...)
	if err != nil {
		return nil, invalid.Errorf("CONFIG_GRPC_XDS_SERVER_URL is %q: %v", s.ServerURL, err)
	}
	return &Client{settings: s, conn: conn, log: log, apply: apply, first: make(chan struct{})}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// beginTime bounds Begin.
const beginTime = 5 * time.Second

// Begin calls Watch in the background. It returns after the first configuration, or 5 s.
func (c *Client) Begin(ctx context.Context) {
	go c.Watch(ctx)
	ctx, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	select {
	case <-c.first:
	case <-ctx.Done():
	}
}

// Watch calls apply with each configuration until ctx is done, and reports to the server which
// are in force and the errors of the others. When the stream ends, it begins another after a
// delay that doubles with each failure.
func (c *Client) Watch(ctx context.Context) {
	wait := c.settings.BackoffInitial
	for ctx.Err() == nil {
		begin := time.Now()
		err := c.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) > c.settings.BackoffMax {
			wait = c.settings.BackoffInitial
		}
		// Half of it is random, so that a server's services don't all reconnect at once.
		d := wait/2 + rand.N(wait/2+1)
		c.log.Warn("the management server is away; the last configuration stays in force", "server", c.settings.ServerURL, "again_in", d, "error", err)
		if !every.Wait(ctx, d) {
			return
		}
		wait = min(2*wait, c.settings.BackoffMax)
	}
}

// stream receives configurations until the stream ends.
func (c *Client) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(c.settings.XDSHeaders)))
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c.conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: c.node(), TypeUrl: TypeURL}); err != nil {
		return err
	}
	var inForce string                         // version on this stream
	var refused *discoveryv3.DiscoveryResponse // the last one, if it was refused, with
	var wrong error                            // its error
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		again := wrong != nil && resp.GetVersionInfo() == refused.GetVersionInfo()
		if again {
			// A server that answers a NACK with the same version would be asked again
			// immediately, over and over.
			if !every.Wait(ctx, againAfter) {
				return ctx.Err()
			}
		}
		if !again || !sameResources(resp, refused) {
			wrong = c.apply(parse(resp))
			c.once.Do(func() { close(c.first) })
		}
		if refused = resp; wrong == nil {
			inForce = resp.GetVersionInfo()
		}
		answer := &discoveryv3.DiscoveryRequest{Node: c.node(), TypeUrl: TypeURL, ResponseNonce: resp.GetNonce(), VersionInfo: inForce}
		if wrong != nil {
			answer.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: wrong.Error()}
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func sameResources(a, b *discoveryv3.DiscoveryResponse) bool {
	return a.GetTypeUrl() == b.GetTypeUrl() && slices.EqualFunc(a.GetResources(), b.GetResources(), func(a, b *anypb.Any) bool { return proto.Equal(a, b) })
}

// againAfter is the delay of the answer to a version that is refused again.
const againAfter = time.Second

// parse returns the configurations of a response. A response of another type contains none,
// and must not pass for an empty one.
func parse(resp *discoveryv3.DiscoveryResponse) (list []*envoyfile.File, err error) {
	var problems []error
	if resp.GetTypeUrl() != TypeURL {
		problems = append(problems, fmt.Errorf("the type of the resources is %q; it must be %s", resp.GetTypeUrl(), TypeURL))
	}
	for _, r := range resp.GetResources() {
		var c rlsconfv3.RateLimitConfig
		if err := r.UnmarshalTo(&c); err != nil {
			problems = append(problems, fmt.Errorf("a resource is no RateLimitConfig: %w", err))
			continue
		}
		f, err := descriptors.FromProto(&c)
		problems = append(problems, err)
		list = append(list, f)
	}
	return list, errors.Join(problems...)
}

// node identifies this service to the server.
func (c *Client) node() *corev3.Node {
	n := &corev3.Node{Id: c.settings.NodeID}
	for _, pair := range strings.Split(c.settings.NodeMetadata, ",") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			if n.Metadata == nil {
				n.Metadata = &structpb.Struct{Fields: make(map[string]*structpb.Value)}
			}
			n.Metadata.Fields[name] = structpb.NewStringValue(value)
		}
	}
	return n
}

func tlsConfig(s settings.XDS) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerSAN}
	if s.ServerCA != "" {
		text, err := os.ReadFile(s.ServerCA)
		if err != nil {
			return nil, invalid.Errorf("CONFIG_GRPC_XDS_SERVER_TLS_CACERT: %v", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, invalid.Errorf("CONFIG_GRPC_XDS_SERVER_TLS_CACERT is %q; it must be a file with certificates in PEM", s.ServerCA)
		}
	}
	if s.ClientCert != "" || s.ClientKey != "" {
		// The files are read for each connection, because certificates are renewed.
		if _, err := tls.LoadX509KeyPair(s.ClientCert, s.ClientKey); err != nil {
			return nil, invalid.Errorf("CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY: %v", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(s.ClientCert, s.ClientKey)
			return &pair, err
		}
	}
	return config, nil
}
