package rls

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
)

// everyKind has rules of each kind, with one entry and with two.
const everyKind = limits + `
- {key: any, value: "a*b", share_threshold: true, rate_limit: {unit: second, requests_per_unit: 4294967295}}
- {key: valued, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 3}, descriptors: [{key: minute, detailed_metric: true, rate_limit: {unit: week, requests_per_unit: 9, algorithm: sliding-window}}]}
- {key: log, metadata: {a: {b: 1}}, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding-log, report: true}}
`

var everything = settings.Answers{
	RetryAfter: true, DynamicMetadata: true, Headers: true, LimitHeader: "a", RemainingHeader: "b", ResetHeader: "c",
}

// answered checks that the answer has the form that proxies expect, whatever the request.
func (s *tested) answered(req *Request) codes.Code {
	s.t.Helper()
	resp, err := s.ShouldRateLimit(context.Background(), req)
	if err != nil {
		if code := status.Code(err); code == codes.InvalidArgument {
			return code
		}
		s.t.Errorf("%.300v: %.300v", req, err)
		return codes.Unknown
	}
	if resp.OverallCode != ok && resp.OverallCode != overLimit || len(resp.Statuses) != len(req.Descriptors) {
		s.t.Errorf("%.300v: %.300v", req, resp)
	}
	for i, st := range resp.Statuses {
		if st.Code != ok && st.Code != overLimit || st.DurationUntilReset.GetSeconds() < 0 {
			s.t.Errorf("%.300v: descriptor %d: %v", req, i, st)
		}
	}
	for _, h := range resp.ResponseHeadersToAdd {
		if h.Key == "" || h.Value == "" || strings.HasPrefix(h.Value, "-") {
			s.t.Errorf("%.300v: header %v", req, h)
		}
	}
	if _, err := proto.Marshal(resp); err != nil {
		s.t.Errorf("%.300v: %v", req, err)
	}
	if _, err := protojson.Marshal(resp); err != nil { // /json
		s.t.Errorf("%.300v: %v", req, err)
	}
	return codes.OK
}

func TestOddRequests(t *testing.T) {
	entry := func(key, value string) *commonv3.RateLimitDescriptor_Entry {
		return &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value}
	}
	of := func(d ...*commonv3.RateLimitDescriptor) *Request { return &Request{Domain: "d", Descriptors: d} }
	override := func(n uint32, unit typev3.RateLimitUnit, times uint32) *Request {
		return of(&commonv3.RateLimitDescriptor{
			Entries: []*commonv3.RateLimitDescriptor_Entry{entry("minute", "o")},
			Limit:   &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit, UnitMultiplier: wrapperspb.UInt32(times)},
		})
	}
	hits := func(n uint64) *Request {
		return of(&commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{entry("minute", "h")}, HitsAddend: wrapperspb.UInt64(n)})
	}
	many := func(n int, d *commonv3.RateLimitDescriptor) *Request {
		req := &Request{Domain: "d"}
		for range n {
			req.Descriptors = append(req.Descriptors, d)
		}
		return req
	}
	minute := &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{entry("minute", "m")}}
	long := strings.Repeat("x", 1<<20)
	deep := &commonv3.RateLimitDescriptor{Limit: &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_HOUR}}
	for range 100_000 {
		deep.Entries = append(deep.Entries, entry("", ""))
	}
	for name, c := range map[string]struct {
		req  *Request
		want codes.Code
	}{
		"a descriptor without entries":   {of(&commonv3.RateLimitDescriptor{}), codes.OK},
		"an entry without a key":         {of(&commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{entry("", "")}}), codes.OK},
		"an override without entries":    {of(&commonv3.RateLimitDescriptor{Limit: &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_HOUR}}), codes.OK},
		"an override of 100,000 entries": {of(deep), codes.OK},
		"an override without a unit":     {override(1, 0, 0), codes.InvalidArgument},
		"an override of a unit below 0":  {override(1, -1, 0), codes.InvalidArgument},
		"an override of a unit of 263":   {override(1, 256+7, 0), codes.InvalidArgument},
		"an override of weeks":           {override(1, 7, 0), codes.OK},
		"an override of too many years":  {override(1, typev3.RateLimitUnit_YEAR, math.MaxUint32), codes.InvalidArgument},
		"the largest override":           {override(math.MaxUint32, typev3.RateLimitUnit_SECOND, 1), codes.OK},
		"an override of no requests":     {override(0, typev3.RateLimitUnit_SECOND, 9), codes.OK},
		"hits of 2^53":                   {hits(1 << 53), codes.OK},
		"hits of 2^53 + 1":               {hits(1<<53 + 1), codes.InvalidArgument},
		"hits of 2^64 - 1":               {hits(math.MaxUint64), codes.InvalidArgument},
		"hits of a request":              {&Request{Domain: "d", HitsAddend: math.MaxUint32, Descriptors: []*commonv3.RateLimitDescriptor{minute, minute}}, codes.OK},
		"a value of a megabyte":          {of(&commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{entry("minute", long)}}), codes.OK},
		"a key of a megabyte":            {of(&commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{entry(long, "")}}), codes.OK},
		"a domain of a megabyte":         {&Request{Domain: long, Descriptors: []*commonv3.RateLimitDescriptor{minute}}, codes.OK},
		"bytes of control":               {of(&commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{entry("minute", "\x00\r\n*%&=?~ \u202e")}}), codes.OK},
		"1024 descriptors":               {many(1024, minute), codes.OK},
		"1025 descriptors":               {many(1025, minute), codes.InvalidArgument},
		"a million descriptors":          {many(1<<20, &commonv3.RateLimitDescriptor{}), codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTested(t, everything, everyKind)
			if got := s.answered(c.req); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
			s.is("minute=z", "OK 1/2 50s a: 2 b: 1 c: 50") // and the service continues
		})
	}
}

// Values of many requests stay out of the metrics, and of memory.
func TestValuesOfRequestsAreBounded(t *testing.T) {
	s := newTested(t, settings.Answers{}, everyKind)
	long := strings.Repeat("x", 1000)
	for i := range maxDynamic + 100 {
		s.ask(request(fmt.Sprintf("valued=%d%s", i, long)))
	}
	kept, bytes := 0, 0
	s.metrics.byLabels.Range(func(key, _ any) bool {
		kept++
		bytes += len(fmt.Sprint(key))
		return true
	})
	if kept > maxDynamic || bytes > maxDynamic*600 {
		t.Errorf("the metrics keep %d labels of %d bytes", kept, bytes)
	}
	s.metrics.domainNotFound("short", 1)
	other := request("minute=a")
	other.Domain = long
	s.ask(other)
	s.metrics.unknown.Range(func(key, _ any) bool {
		if len(key.(string)) > maxLabel {
			t.Errorf("the metrics keep a domain of %d bytes", len(key.(string)))
		}
		return true
	})
}

// FuzzRequest sends requests that a proxy, or any client that reaches the port, may send.
func FuzzRequest(f *testing.F) {
	for _, text := range []string{"minute=a | hour=b +2", "none=a", "shadow=a | q1=b | q2=c", "any=ab +0", "valued=x minute=y", "log=a +99", "named=a | replacing=b", "bucket=a"} {
		b, err := proto.Marshal(request(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	s := newTested(f, everything, everyKind)
	counting := newTested(f, settings.Answers{CountRefused: true, QuotaMode: true, RetryAfter: true}, everyKind)
	f.Fuzz(func(t *testing.T, b []byte) {
		req := new(Request)
		if proto.Unmarshal(b, req) != nil {
			return // gRPC answers
		}
		s.t, counting.t = t, t
		s.answered(req)
		counting.answered(req)
	})
}
