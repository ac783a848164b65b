package oracle

import (
	"context"
	"fmt"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// whole returns all of an answer in a line: its code, its statuses, its headers and its metadata,
// or its error.
func whole(ctx context.Context, s asked, req *ratelimitv3.RateLimitRequest) string {
	resp, err := s.ShouldRateLimit(ctx, req)
	if err != nil {
		st := status.Convert(err)
		return fmt.Sprintf("%v %s", st.Code(), st.Message())
	}
	var b strings.Builder
	b.WriteString(resp.GetOverallCode().String())
	for _, st := range resp.GetStatuses() {
		fmt.Fprintf(&b, " | %.2s %d", st.GetCode(), st.GetLimitRemaining())
		if l := st.GetCurrentLimit(); l != nil {
			fmt.Fprintf(&b, " of %d a %v %s", l.GetRequestsPerUnit(), l.GetUnit(), l.GetName())
			if n := l.GetUnitMultiplier(); n != nil {
				fmt.Fprintf(&b, " × %d", n.GetValue())
			}
		}
		if d := st.GetDurationUntilReset(); d != nil {
			fmt.Fprintf(&b, " %gs", d.AsDuration().Seconds())
		}
	}
	for _, h := range resp.GetResponseHeadersToAdd() {
		fmt.Fprintf(&b, " %s: %s", h.GetKey(), h.GetValue())
	}
	if m := resp.GetDynamicMetadata(); m != nil {
		b.WriteString(" " + text(structpb.NewStructValue(m)))
	}
	if len(resp.GetRequestHeadersToAdd()) > 0 || len(resp.GetRawBody()) > 0 || resp.GetQuota() != nil {
		fmt.Fprintf(&b, " and %v", resp)
	}
	return b.String()
}

// text returns a value with its fields in order. The text of messages in it has random blanks.
func text(v *structpb.Value) string {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		var list []string
		for name, field := range k.StructValue.GetFields() {
			list = append(list, name+"="+text(field))
		}
		slices.Sort(list)
		return "{" + strings.Join(list, " ") + "}"
	case *structpb.Value_ListValue:
		var list []string
		for _, item := range k.ListValue.GetValues() {
			list = append(list, text(item))
		}
		return "[" + strings.Join(list, " ") + "]"
	case *structpb.Value_StringValue:
		return strings.Join(strings.Fields(k.StringValue), " ")
	}
	return fmt.Sprint(v.AsInterface())
}
