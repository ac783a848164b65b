package weirgrpc_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	weirgrpc "github.com/weir-go/weir/contrib/grpc"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

func TestAStreamIsChargedOnce(t *testing.T) {
	f := newFixture(t, setup{})
	received, a := f.send(t, 5)
	if expectCode(t, a, codes.OK); received != 5 {
		t.Errorf("received %d messages; want 5", received)
	}
	expect(t, "header", a.header, "x-ratelimit-used", "1")
	expect(t, "trailer", a.trailer, "x-ratelimit-used", "")
	f.send(t, 1)

	f.stream = func(pb.TestService_FullDuplexCallServer) error { t.Error("the handler ran"); return nil }
	_, a = f.send(t, 1)
	expectCode(t, a, codes.ResourceExhausted)
	expect(t, "trailer", a.trailer, "grpc-retry-pushback-ms", "60000", "retry-after", "60", "x-ratelimit-used", "2")
	if len(a.header) > 0 {
		t.Errorf("a refusal has the header %v; gRPC would not retry it", a.header)
	}
}

func TestAStreamIsChargedPerMessage(t *testing.T) {
	f := newFixture(t, setup{options: weirgrpc.Options{PerMessage: true}})
	received, a := f.send(t, 2)
	if expectCode(t, a, codes.OK); received != 2 {
		t.Errorf("received %d messages; want 2", received)
	}
	f.expectUsed(t, everyone, 2)

	f = newFixture(t, setup{options: weirgrpc.Options{PerMessage: true}})
	received, a = f.send(t, 5)
	if expectCode(t, a, codes.ResourceExhausted); received != 2 {
		t.Errorf("received %d messages; want 2", received)
	}
	expect(t, "trailer", a.trailer, "grpc-retry-pushback-ms", "60000")
	f.expectUsed(t, everyone, 2)

	// A handler can't mistake the refusal for the end of the messages.
	f = newFixture(t, setup{options: weirgrpc.Options{PerMessage: true}})
	f.stream = func(s pb.TestService_FullDuplexCallServer) error {
		for {
			if _, err := s.Recv(); err != nil {
				if _, again := s.Recv(); status.Code(again) != status.Code(err) {
					t.Errorf("after %v came %v; want the same", err, again)
				}
				return nil
			}
			if err := s.Send(&pb.StreamingOutputCallResponse{}); err != nil {
				return err
			}
		}
	}
	_, a = f.send(t, 5)
	expectCode(t, a, codes.ResourceExhausted)
}

func TestAStreamThatSendsNothing(t *testing.T) {
	refundIf := func(_ context.Context, _ string, err error) bool { return status.Code(err) == codes.NotFound }
	f := newFixture(t, setup{options: weirgrpc.Options{RefundIf: refundIf}})
	f.stream = func(pb.TestService_FullDuplexCallServer) error { return status.Error(codes.NotFound, "") }
	_, a := f.send(t, 1)
	expectCode(t, a, codes.NotFound)
	expect(t, "trailer", a.trailer, "x-ratelimit-used", "0")
	if len(a.header) > 0 {
		t.Errorf("the stream has the header %v; gRPC would not retry it", a.header)
	}
	f.expectUsed(t, everyone, 0)
}

func TestHeadersOfStreams(t *testing.T) {
	f := newFixture(t, setup{})
	f.stream = func(s pb.TestService_FullDuplexCallServer) error { return s.SendHeader(metadata.Pairs("x-own", "1")) }
	_, a := f.send(t, 0)
	expect(t, "header", a.header, "x-own", "1", "x-ratelimit-used", "1")

	f.stream = func(s pb.TestService_FullDuplexCallServer) error {
		if err := grpc.SendHeader(s.Context(), metadata.Pairs("x-own", "1")); err != nil { // bypasses the limit's stream
			return err
		}
		return s.Send(&pb.StreamingOutputCallResponse{})
	}
	_, a = f.send(t, 0)
	expectCode(t, a, codes.OK)
	expect(t, "trailer", a.trailer, "x-ratelimit-used", "2")
}

// A call or stream is in flight until its handler has ended.
func TestInFlight(t *testing.T) {
	one := throttler.Limit{Quota: 1, Window: time.Minute, Algorithm: quota.InFlight}
	f := newFixture(t, setup{limit: one, options: weirgrpc.Options{PerMessage: true}})
	during := func() {
		f.expectUsed(t, everyone, 1)
		refused := f.call(t.Context())
		expectCode(t, refused, codes.ResourceExhausted)
		if refused.message != "core allows 1 at once. Try again in 1 s." {
			t.Errorf("the refusal says %q", refused.message)
		}
		expect(t, "trailer", refused.trailer, "retry-after", "1", "grpc-retry-pushback-ms", "1000", "x-ratelimit-limit", "1")
	}
	f.unary = func(context.Context) error { during(); return nil }
	expectCode(t, f.call(t.Context()), codes.OK)
	f.expectUsed(t, everyone, 0)
	f.unary = func(context.Context) error { panic("a bug") }
	expectCode(t, f.call(t.Context()), codes.Internal)
	f.expectUsed(t, everyone, 0)
	f.unary = nil
	f.stream = func(pb.TestService_FullDuplexCallServer) error { during(); return nil }
	_, a := f.send(t, 0)
	expectCode(t, a, codes.OK)
	f.expectUsed(t, everyone, 0)
	expectCode(t, f.call(t.Context()), codes.OK)
}
