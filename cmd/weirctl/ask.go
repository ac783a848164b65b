package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/throttler/quota"
)

// fill sets what s says of a count.
func fill(row *operator.Row, s *ratelimitv3.RateLimitResponse_DescriptorStatus) {
	limit := s.GetCurrentLimit()
	if limit == nil {
		row.Notes = []string{"no rule with a limit, or a hidden one"}
		if s.GetLimitRemaining() > 0 {
			row.Notes = []string{"unlimited"}
		}
		return
	}
	row.Rule = cmp.Or(limit.GetName(), row.Rule)
	var unit envoyfile.Unit
	_ = unit.UnmarshalText([]byte(limit.GetUnit().String())) // a unit of a newer service has no window
	requests, multiplier := int64(limit.GetRequestsPerUnit()), limit.GetUnitMultiplier().GetValue()
	row.Limit = &quota.Limit{Quota: requests, Window: unit.Window() * time.Duration(max(multiplier, 1)), Aligned: true}
	row.Used = max(requests-row.Remaining, 0)
	row.Refused = s.GetCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT || row.Remaining == 0
	if s.GetDurationUntilReset() != nil {
		end := time.Now().Add(s.GetDurationUntilReset().AsDuration())
		row.ResetAt = &end
		if row.Refused {
			row.RetryAt = &end
		}
	}
}

// ask asks a throttlerd about the descriptors in args. It charges nothing.
func (e *explained) ask(ctx context.Context, from string, args []string) error {
	u, err := url.Parse(from)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return usage("-from is %q; it must be a URL, such as http://127.0.0.1:8080", from)
	}
	u.Path = "/json"
	descriptors, err := descriptorsOf(args[1:])
	if err == nil && len(descriptors) == 0 {
		err = usage("there is no descriptor; there must be entries after the domain, such as api_key=k7")
	}
	if err != nil {
		return err
	}
	question := &ratelimitv3.RateLimitRequest{Domain: args[0]}
	for _, entries := range descriptors {
		d := &commonv3.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(0)}
		for _, entry := range entries {
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: entry.Key, Value: entry.Value})
		}
		question.Descriptors = append(question.Descriptors, d)
	}
	answer, err := post(ctx, u.String(), question)
	if err != nil {
		return fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	if len(answer.GetStatuses()) != len(descriptors) {
		return fmt.Errorf("%s: the answer has %d statuses; it must be from a throttlerd, with one for each of %d descriptors", u.Redacted(), len(answer.GetStatuses()), len(descriptors))
	}
	for i, status := range answer.GetStatuses() {
		var entries []string
		for _, entry := range descriptors[i] {
			entries = append(entries, entry.Key+"="+entry.Value)
		}
		row := operator.Row{Rule: strings.Join(entries, " "), Policy: "-", Key: "-", Remaining: int64(status.GetLimitRemaining())}
		fill(&row, status)
		e.Counts = append(e.Counts, row)
		e.Refused = e.Refused || row.Refused
		if row.RetryAt != nil && (e.RetryAt == nil || row.RetryAt.After(*e.RetryAt)) {
			e.RetryAt = row.RetryAt
		}
	}
	e.Notes = append(e.Notes, "as this process counts; a rule in shadow_mode with nothing left refuses nothing")
	return nil
}

// post asks a throttlerd, by the JSON form of Envoy's service.
func post(ctx context.Context, u string, question *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	text, err := protojson.Marshal(question)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer closing(response.Body)
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
		err = fmt.Errorf("the answer is %s: %s", response.Status, bytes.TrimSpace(body))
	}
	if err != nil {
		return nil, err
	}
	answer := new(ratelimitv3.RateLimitResponse)
	return answer, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, answer)
}
