package rls

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/config/envoyfile"
)

var t0 = time.Date(2026, 11, 24, 10, 0, 10, 300e6, time.UTC)

// tested is a server in memory with a clock that the test sets.
type tested struct {
	*Server
	t     testing.TB
	clock *clock.Manual
}

func newTested(t testing.TB, answers settings.Answers, text string) *tested {
	t.Helper()
	c := clock.NewManual(t0)
	answers.NearLimitRatio = 0.8
	s := &tested{New(memorybackend.NewDefault(), c, &Options{Answers: answers, Metrics: NewMetrics(prometheus.NewRegistry(), answers.Compatible)}), t, c}
	s.load(text)
	return s
}

// load puts a configuration in force.
func (s *tested) load(text string) {
	s.t.Helper()
	f, err := envoyfile.Parse("a.yaml", []byte("domain: d\ndescriptors:\n"+text), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	set, err := descriptors.New([]*envoyfile.File{f}, false, false)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Load(set)
}

// request returns the request for a text: descriptors between bars, entries between spaces,
// and +n for a descriptor's hits.
func request(text string) *Request {
	req := &Request{Domain: "d"}
	for _, part := range strings.Split(text, "|") {
		d := &commonv3.RateLimitDescriptor{}
		for _, e := range strings.Fields(part) {
			if hits, ok := strings.CutPrefix(e, "+"); ok {
				n, err := strconv.ParseUint(hits, 10, 64)
				if err != nil {
					panic(err)
				}
				d.HitsAddend = wrapperspb.UInt64(n)
				continue
			}
			key, value, _ := strings.Cut(e, "=")
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// ask returns the answer in short: OK or OVER, and for each descriptor its remaining units,
// its limit and its reset, with ! if it is over.
func (s *tested) ask(req *Request) string {
	s.t.Helper()
	resp, err := s.ShouldRateLimit(context.Background(), req)
	if err != nil {
		return err.Error()
	}
	text := map[bool]string{true: "OK", false: "OVER"}[resp.OverallCode == ok]
	for _, st := range resp.Statuses {
		over := map[bool]string{true: "!"}[st.Code == overLimit]
		switch {
		case st.CurrentLimit == nil && st.LimitRemaining > 0:
			text += over + " unlimited"
		case st.CurrentLimit == nil:
			text += over + " -"
		default:
			text += fmt.Sprintf(" %d/%d%s", st.LimitRemaining, st.CurrentLimit.RequestsPerUnit, over)
			if st.DurationUntilReset != nil {
				text += fmt.Sprintf(" %ds", st.DurationUntilReset.Seconds)
			}
		}
	}
	for _, h := range resp.ResponseHeadersToAdd {
		text += fmt.Sprintf(" %s: %s", h.Key, h.Value)
	}
	return text
}

// is checks the answers to a list of requests.
func (s *tested) is(requestsAndAnswers ...string) {
	s.t.Helper()
	for i := 0; i < len(requestsAndAnswers); i += 2 {
		if got, want := s.ask(request(requestsAndAnswers[i])), requestsAndAnswers[i+1]; got != want {
			s.t.Errorf("request %d, %s: %s\nwant %s", i/2, requestsAndAnswers[i], got, want)
		}
	}
}

const limits = `
- {key: minute, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: hour, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
- {key: bucket, rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token-bucket, burst: 2}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: q1, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: q2, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: named, rate_limit: {unit: minute, requests_per_unit: 1, name: n}}
- {key: replacing, rate_limit: {unit: minute, requests_per_unit: 3, replaces: [{name: n}]}}
`

var withRetry = settings.Answers{RetryAfter: true}

func TestAllOrNothing(t *testing.T) {
	s := newTested(t, withRetry, limits)
	s.is(
		"minute=a | hour=a", "OK 1/2 50s 4/5 3590s",
		"hour=a | minute=a +2", "OVER 4/5 3590s 1/2! 50s Retry-After: 50", // hour is not charged
		"minute=a | hour=a", "OK 0/2 50s 3/5 3590s",
		"minute=a | hour=a", "OVER 0/2! 50s 3/5 3590s Retry-After: 50",
		"minute=b", "OK 1/2 50s",
		"minute=b +3", "OVER 1/2! 50s", // can never fit
	)
	s.clock.Advance(50 * time.Second)
	s.is("minute=a | hour=a", "OK 1/2 60s 2/5 3540s")
}

func TestKindsOfLimits(t *testing.T) {
	s := newTested(t, withRetry, limits)
	s.is(
		"none=a", "OVER 0/0! 3590s Retry-After: 3590",
		"none=a | minute=a", "OVER 0/0! 3590s 2/2 50s Retry-After: 3590", // minute is not charged
		"free=a | other=a | minute=a", "OK unlimited - 1/2 50s",
		"named=a", "OK 0/1 50s",
		"named=a | replacing=a", "OK - 2/3 50s",
		"bucket=a +2", "OK 0/60 2s",
		"bucket=a +2", "OVER 0/60! 2s Retry-After: 2",
		"bucket=a", "OVER 0/60! 2s Retry-After: 1", // room for one unit comes before the reset
	)
}

func TestShadowAndQuotaModes(t *testing.T) {
	s := newTested(t, withRetry, limits)
	s.is(
		"shadow=a | minute=a", "OK 0/1 50s 1/2 50s",
		"shadow=a | minute=a", "OK 0/1 50s 0/2 50s",
		"shadow=b | minute=a", "OVER 1/1 50s 0/2! 50s Retry-After: 50", // shadow is not charged
		"q1=a | q2=a", "OK 0/1 50s 1/2 3590s",
		"q1=a | q2=a", "OK 0/1! 50s 0/2 3590s",
		"q1=a | q2=a | minute=b", "OVER 0/1! 50s 0/2! 3590s 1/2 50s Retry-After: 50",
		"minute=b", "OK 1/2 50s", // was refunded
	)
	global := newTested(t, settings.Answers{ShadowMode: true, RetryAfter: true}, limits)
	global.is("none=a", "OK 0/0! 3590s")
}

// Trap 1: a check of 0 hits is over when more than the limit is used, and charges nothing.
func TestChecksOfNoHits(t *testing.T) {
	s := newTested(t, withRetry, limits)
	s.is(
		"minute=a +0", "OK 2/2 50s",
		"minute=b +2", "OK 0/2 50s",
		"minute=b +0", "OK 0/2 50s",
		"minute=b +0 | hour=a", "OK 0/2 50s 4/5 3590s",
	)
}

// Trap 2: a report after a response is charged, whether it fits or not, if the rule says so.
func TestReports(t *testing.T) {
	s := newTested(t, withRetry, limits+"- {key: tokens, rate_limit: {unit: minute, requests_per_unit: 10, report: true}}\n")
	s.is(
		"tokens=a +8", "OK 2/10 50s",
		"tokens=a +8", "OVER 0/10! 50s Retry-After: 50", // 16 are charged
		"tokens=a +0", "OVER 0/10! 50s Retry-After: 50",
		"tokens=b +10 | minute=a", "OK 0/10 50s 1/2 50s",
		"tokens=b +0", "OK 0/10 50s", // all is used, and no more
		"minute=b +3", "OVER 2/2! 50s",
		"minute=b +0", "OK 2/2 50s",
		"minute=b +3", "OVER 2/2! 50s", // a check changes nothing
	)
}

// A call with 0 hits, such as one with the size of an empty body, is no other client's concern:
// refused hits stay uncharged.
func TestNoHitsOfOneClient(t *testing.T) {
	s := newTested(t, withRetry, "- {key: c, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: token-bucket}}\n")
	s.is("c=a +0", "OK 10/10 0s")
	for range 10 {
		s.ask(request("c=b +1"))
	}
	for range 100 {
		s.ask(request("c=b +1"))
	}
	s.is("c=b +1", "OVER 0/10! 3600s Retry-After: 360")
}

// A report with the request's own limit, as Envoy Gateway sends it for a limit in metadata, is
// treated like a report of a rule. Its descriptors can't say that they are reports, so a
// descriptor's own hits are one.
func TestReportsOfOverrides(t *testing.T) {
	s := newTested(t, settings.Answers{RetryAfter: true, OwnHitsReport: true}, limits)
	ask := func(text, want string) {
		t.Helper()
		req := request(text)
		req.Descriptors[0].Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 10, Unit: typev3.RateLimitUnit_MINUTE}
		if got := s.ask(req); got != want {
			t.Errorf("%s: %s; want %s", text, got, want)
		}
	}
	ask("minute=a +0", "OK 10/10 50s")
	ask("minute=a +8", "OK 2/10 50s")
	ask("minute=a +8", "OVER 0/10! 50s Retry-After: 50")
	ask("minute=a +0", "OVER 0/10! 50s Retry-After: 50")
	ask("unknown=a +11", "OVER 0/10! 50s Retry-After: 50")
	ask("unknown=b", "OK 9/10 50s")
}

// In quota_mode, a descriptor's own hits are the cost of a response, as in Envoy AI Gateway.
// Its requests ask with a hit each.
func TestReportsOfQuotas(t *testing.T) {
	s := newTested(t, withRetry, limits)
	s.is(
		"q2=a", "OK 1/2 3590s",
		"q2=a +25", "OVER 0/2! 3590s Retry-After: 3590",
		"q2=a", "OVER 0/2! 3590s Retry-After: 3590",
		"q1=a | q2=b", "OK 0/1 50s 1/2 3590s",
	)
}

// WEIR_COUNT_REFUSED: all descriptors are charged, whether others refuse or not.
func TestCountRefused(t *testing.T) {
	s := newTested(t, settings.Answers{CountRefused: true, RetryAfter: true}, limits)
	s.is(
		"minute=a +2 | hour=a", "OK 0/2 50s 4/5 3590s",
		"minute=a | hour=a", "OVER 0/2! 50s 3/5 3590s Retry-After: 50",
		"shadow=a +2 | hour=a", "OK 0/1 50s 2/5 3590s",
		"hour=b | hour=b", "OK 3/5 3590s 3/5 3590s",
	)
}

// Trap 3: a count is the same in any company.
func TestCountsAreTheSameInAnyCompany(t *testing.T) {
	s := newTested(t, withRetry, limits)
	s.is(
		"minute=a", "OK 1/2 50s",
		"hour=a | minute=a", "OK 4/5 3590s 0/2 50s",
		"minute=a", "OVER 0/2! 50s Retry-After: 50",
		"hour=b | hour=b", "OK 3/5 3590s 3/5 3590s", // the same count twice
	)
	many := strings.Repeat("hour=x | ", 3) + "minute=z"
	for i := range 40 {
		many += fmt.Sprintf(" | hour=y%d", i)
	}
	s.ask(request(many + " | minute=a"))
	if got := s.ask(request("hour=y0 | hour=y39 | minute=z")); got != "OK 4/5 3590s 4/5 3590s 1/2 50s" {
		t.Errorf("44 descriptors, of which the last refuses, have charged some: %s", got)
	}
}

func TestOverrides(t *testing.T) {
	s := newTested(t, withRetry, limits)
	override := func(n uint32, u typev3.RateLimitUnit, entries string) *Request {
		req := request(entries)
		req.Descriptors[0].Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: u}
		return req
	}
	for _, step := range []struct {
		req  *Request
		want string
	}{
		{override(1, typev3.RateLimitUnit_MINUTE, "minute=a"), "OK 0/1 50s"},
		{override(1, typev3.RateLimitUnit_MINUTE, "minute=a"), "OVER 0/1! 50s Retry-After: 50"},
		{override(3, typev3.RateLimitUnit_MINUTE, "minute=a"), "OK 1/3 50s"},
		{override(3, typev3.RateLimitUnit_HOUR, "unknown=a"), "OK 2/3 3590s"},
		{override(0, typev3.RateLimitUnit_HOUR, "unknown=a"), "OVER 0/0! 3590s Retry-After: 3590"},
		{request("minute=a"), "OK 1/2 50s"},
		{override(1, typev3.RateLimitUnit_UNKNOWN, "minute=a"), "rpc error: code = InvalidArgument desc = descriptor 0 has a limit whose unit is UNKNOWN; it must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR"},
	} {
		if got := s.ask(step.req); got != step.want {
			t.Errorf("%v: %s\nwant %s", step.req, got, step.want)
		}
	}
	req := override(1, typev3.RateLimitUnit_SECOND, "minute=m")
	req.Descriptors[0].Limit.UnitMultiplier = wrapperspb.UInt32(30)
	if got := s.ask(req); got != "OK 0/1 20s" {
		t.Errorf("30 times a second: %s", got)
	}
}

// A request has two overrides of the same entries: each has the count of its window, and if
// one refuses, the other is not charged.
func TestOverridesOfTheSameEntries(t *testing.T) {
	s := newTested(t, withRetry, limits)
	both := func(n1, times1, n2, times2 uint32) *Request {
		req := request("minute=a | minute=a")
		req.Descriptors[0].Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n1, Unit: typev3.RateLimitUnit_MINUTE, UnitMultiplier: wrapperspb.UInt32(times1)}
		req.Descriptors[1].Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n2, Unit: typev3.RateLimitUnit_MINUTE, UnitMultiplier: wrapperspb.UInt32(times2)}
		return req
	}
	for _, step := range []struct {
		req  *Request
		want string
	}{
		{both(3, 1, 2, 5), "OK 2/3 50s 1/2 290s"},
		{both(3, 1, 2, 5), "OK 1/3 50s 0/2 290s"},
		{both(3, 1, 2, 5), "OVER 1/3 50s 0/2! 290s Retry-After: 290"},
		{both(3, 1, 3, 5), "OK 0/3 50s 0/3 290s"},
		{both(9, 0, 8, 1), "OK 5/9 50s 3/8 50s"}, // both charge one count
		{both(9, 1, 4, 1), "OVER 3/9 50s 0/4! 50s Retry-After: 50"},
	} {
		if got := s.ask(step.req); got != step.want {
			t.Errorf("%v: %s\nwant %s", step.req, got, step.want)
		}
	}
}

func TestBadRequests(t *testing.T) {
	s := newTested(t, withRetry, limits)
	negative := request("minute=a")
	negative.Descriptors[0].IsNegativeHits = true
	for _, req := range []*Request{{}, {Domain: "d"}, request("minute=a +9007199254740993"), negative} {
		if _, err := s.ShouldRateLimit(context.Background(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", req, err)
		}
	}
	other := request("minute=a")
	other.Domain = "other"
	if got := s.ask(other); got != "OK -" {
		t.Error(got)
	}
	s.loaded.Store(nil)
	if _, err := s.ShouldRateLimit(context.Background(), request("minute=a")); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// A silent store counts as down early enough for an answer in time.
func TestSilence(t *testing.T) {
	for deadline, want := range map[int]int{15: 10, 45: 30, 50: 35, 1000: 985} {
		if got := silence(time.Duration(deadline) * time.Millisecond); got != time.Duration(want)*time.Millisecond {
			t.Errorf("with a deadline of %d ms: %v, want %d ms", deadline, got, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	a := settings.Answers{RetryAfter: true, Headers: true, LimitHeader: "L", RemainingHeader: "M", ResetHeader: "R"}
	s := newTested(t, a, limits)
	s.is(
		"hour=a | minute=a", "OK 4/5 3590s 1/2 50s L: 2 M: 1 R: 50",
		"hour=a | minute=a +2", "OVER 4/5 3590s 1/2! 50s L: 2 M: 1 R: 50 Retry-After: 50",
		"free=a", "OK unlimited",
		"shadow=a", "OK 0/1 50s L: 1 M: 0 R: 50", // shadow_mode has headers, too
		"shadow=a", "OK 0/1 50s L: 1 M: 0 R: 50",
	)
}

// Compatible makes answers equal to envoyproxy/ratelimit's.
func TestCompatible(t *testing.T) {
	read, err := settings.Read([]string{"WEIR_COMPATIBLE=true", "LIMIT_RESPONSE_HEADERS_ENABLED=true"})
	if err != nil {
		t.Fatal(err)
	}
	a := read.Answers
	a.LimitHeader, a.RemainingHeader, a.ResetHeader = "L", "M", "R"
	s := newTested(t, a, limits)
	s.is(
		"minute=a +3", "OVER 0/2! 50s L: 2 M: 0 R: 50",
		"minute=a", "OVER 0/2! 50s L: 2 M: 0 R: 50", // the first was charged
		"hour=b +6 | minute=b +3", "OVER 0/5! 3590s 0/2! 50s L: 2 M: 0 R: 50", // the last that refuses
	)
	if over := s.metrics.names.countersOf("d.minute").exceeded.(*hits).Load(); over != 3 {
		t.Errorf("%v hits over the limit; want 1, 1 and 1", over)
	}
	_, err = s.ShouldRateLimit(t.Context(), &Request{})
	if st := status.Convert(err); st.Code() != codes.Unknown || st.Message() != "rate limit domain must not be empty" || IsUnavailable(err) {
		t.Errorf("%v; want an unknown error that is no outage", err)
	}
}

func TestDynamicMetadata(t *testing.T) {
	s := newTested(t, settings.Answers{DynamicMetadata: true}, `
- {key: a, metadata: {both: {a: 1}, first: a}, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, metadata: {both: {b: 2}, first: b}, rate_limit: {unit: hour, requests_per_unit: 9}}
`)
	for _, want := range []string{
		`descriptors:[map[entries:[a=1]] map[entries:[b=1] hitsAddend:1]] domain:d metadata:map[both:map[a:1 b:2] first:a]`,
		`descriptors:[map[entries:[a=1]] map[entries:[b=1] hitsAddend:1]] domain:d metadata:map[both:map[b:2] first:b]`,
		`descriptors:[map[entries:[a=1]] map[entries:[b=1] hitsAddend:1]] domain:d metadata:map[both:map[b:2] first:b]`,
	} {
		resp, err := s.ShouldRateLimit(context.Background(), request("a=1 | b=1 +1"))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(resp.DynamicMetadata.AsMap()); got != "map["+want+"]" {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// Descriptors that come and go leave no series behind, and the others keep their counts.
func TestSeriesOfDescriptorsThatGo(t *testing.T) {
	r := prometheus.NewRegistry()
	s := newTested(t, settings.Answers{}, limits)
	s.metrics = NewMetrics(r, false)
	hits := func() (text string) {
		all, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.GetName() != "ratelimit_service_rate_limit_total_hits" {
				continue
			}
			for _, m := range f.GetMetric() {
				text += fmt.Sprintf("%s%s %v, ", m.GetLabel()[1].GetValue(), m.GetLabel()[2].GetValue(), m.GetCounter().GetValue())
			}
		}
		return text
	}
	const some = `
- {key: a, rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: c, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 9}}
`
	s.load(some)
	s.is("a=1", "OK 8/9 50s", "b=1", "OK 8/9 50s", "c=1", "OK 8/9 50s")
	if got, want := hits(), "a 1, b 1, c 0, c_1 1, "; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	s.load(`
- {key: b, rate_limit: {unit: minute, requests_per_unit: 8}}
- {key: c, value: "1", rate_limit: {unit: minute, requests_per_unit: 9}}
`)
	s.is("b=1", "OK 6/8 50s", "c=1", "OK 7/9 50s")
	if got, want := hits(), "b 2, c_1 2, "; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	s.load(some)
	s.is("b=1", "OK 6/9 50s", "c=1", "OK 6/9 50s")
	if got, want := hits(), "a 0, b 3, c 0, c_1 3, "; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// A hidden rule refuses in one decision with the others. Answers and headers have no limit of it.
func TestHidden(t *testing.T) {
	for _, compatible := range []bool{false, true} {
		s := newTested(t, settings.Answers{RetryAfter: true, Headers: true, Compatible: compatible, LimitHeader: "L", RemainingHeader: "R", ResetHeader: "S"}, limits+`
- {key: guard, rate_limit: {unit: minute, requests_per_unit: 1, hidden: true}}
`)
		s.is(
			"hour=a | guard=a", "OK 4/5 3590s - L: 5 R: 4 S: 3590",
			"hour=a | guard=a", "OVER 4/5 3590s! - L: 5 R: 4 S: 3590 Retry-After: 50",
			"guard=b", "OK -",
			"guard=b", "OVER! - Retry-After: 50",
		)
	}
}

// A limit that is over in shadow_mode passes, so its metadata is in the answer. An unlimited
// descriptor is not replaced: there is no limit.
func TestShadowMetadataAndReplacedUnlimited(t *testing.T) {
	s := newTested(t, settings.Answers{DynamicMetadata: true}, `
  - {key: trial, shadow_mode: true, metadata: {model: small}, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true, name: free}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: free}]}}
`)
	for range 2 {
		resp, err := s.ShouldRateLimit(t.Context(), request("trial=a"))
		if err != nil || resp.GetDynamicMetadata().AsMap()["metadata"] == nil {
			t.Errorf("%v, %v: want metadata", resp, err)
		}
	}
	if got := s.ask(request("free=a | other=b")); !strings.HasPrefix(got, "OK unlimited 4/5") {
		t.Error(got)
	}
}
