package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/throttler/quota"
)

// checkRequest is a request of checks, which charge nothing, in the JSON form of Envoy's service.
type checkRequest struct {
	Domain      string            `json:"domain"`
	Descriptors []checkDescriptor `json:"descriptors"`
}

type checkDescriptor struct {
	Entries []checkEntry `json:"entries"`
	Hits    string       `json:"hitsAddend"`
}

type checkEntry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// checkResponse is the part of the answer that explain shows.
type checkResponse struct {
	Statuses []checkStatus `json:"statuses"`
}

type checkStatus struct {
	Code  string `json:"code"`
	Limit *struct {
		Requests   int64  `json:"requestsPerUnit"`
		Unit       string `json:"unit"`
		Name       string `json:"name"`
		Multiplier int64  `json:"unitMultiplier"`
	} `json:"currentLimit"`
	Remaining int64  `json:"limitRemaining"`
	Reset     string `json:"durationUntilReset"`
}

// fill sets what s says of a count.
func (s *checkStatus) fill(row *operator.Row) {
	if s.Limit == nil {
		row.Notes = []string{"no rule with a limit, or a hidden one"}
		if s.Remaining > 0 {
			row.Notes = []string{"unlimited"}
		}
		return
	}
	row.Rule = cmp.Or(s.Limit.Name, row.Rule)
	var unit envoyfile.Unit
	_ = unit.UnmarshalText([]byte(s.Limit.Unit)) // a unit of a newer service has no window
	row.Limit = &quota.Limit{Quota: s.Limit.Requests, Window: unit.Window() * time.Duration(max(s.Limit.Multiplier, 1)), Aligned: true}
	row.Used = max(s.Limit.Requests-s.Remaining, 0)
	row.Refused = s.Code == "OVER_LIMIT" || s.Remaining == 0
	if d, err := time.ParseDuration(s.Reset); err == nil {
		end := time.Now().Add(d)
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
	question := checkRequest{Domain: args[0]}
	for _, entries := range descriptors {
		d := checkDescriptor{Hits: "0"}
		for _, entry := range entries {
			d.Entries = append(d.Entries, checkEntry(entry))
		}
		question.Descriptors = append(question.Descriptors, d)
	}
	text, err := json.Marshal(question)
	if err != nil {
		return err
	}
	answer, err := post(ctx, u.String(), text)
	if err != nil {
		return fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	if len(answer.Statuses) != len(descriptors) {
		return fmt.Errorf("%s: the answer has %d statuses; it must be from a throttlerd, with one for each of %d descriptors", u.Redacted(), len(answer.Statuses), len(descriptors))
	}
	for i := range answer.Statuses {
		s := &answer.Statuses[i]
		var entries []string
		for _, entry := range descriptors[i] {
			entries = append(entries, entry.Key+"="+entry.Value)
		}
		row := operator.Row{Rule: strings.Join(entries, " "), Policy: "-", Key: "-", Remaining: s.Remaining}
		s.fill(&row)
		e.Counts = append(e.Counts, row)
		e.Refused = e.Refused || row.Refused
		if row.RetryAt != nil && (e.RetryAt == nil || row.RetryAt.After(*e.RetryAt)) {
			e.RetryAt = row.RetryAt
		}
	}
	e.Notes = append(e.Notes, "as this process counts; a rule in shadow_mode with nothing left refuses nothing")
	return nil
}

func post(ctx context.Context, u string, text []byte) (answer checkResponse, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u, bytes.NewReader(text))
	if err != nil {
		return answer, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer, err
	}
	defer closing(response.Body)
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
		err = fmt.Errorf("the answer is %s: %s", response.Status, bytes.TrimSpace(body))
	}
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return answer, err
}
