package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/throttler/decision"
)

// Explanation says whether a request is refused, and by which counts.
type Explanation struct {
	Refused bool       `json:"refused"`
	RetryAt *time.Time `json:"retry_at,omitempty"` // when the request fits; nil if it is not refused, or never
	Counts  []Row      `json:"counts"`
	Notes   []string   `json:"notes,omitempty"`
}

// Explain reads the counts of matches, and finds out which of them refuse. It returns how many
// could not be read.
func (e *Explanation) Explain(ctx context.Context, c *Counts, matches []inspect.Match) (failed int) {
	e.Counts = []Row{}
	var retryAt time.Time
	quotas, quotasOver := 0, 0
	for i := range matches {
		refusing := false
		for _, row := range c.Show(ctx, &matches[i]) {
			if row.Error != "" {
				failed++
			}
			e.Counts = append(e.Counts, row)
			isBlock := row.Override != nil && row.Override.Blocked
			if refusing = refusing || row.Refused; !row.Refused || !isBlock && (matches[i].Shadow || matches[i].Quota) {
				continue
			}
			e.Refused = true
			if fits := row.RetryAt; fits == nil {
				retryAt = decision.Never
			} else if fits.After(retryAt) {
				retryAt = *fits
			}
		}
		if matches[i].Quota && !matches[i].Shadow {
			if quotas++; refusing {
				quotasOver++
			}
		}
	}
	if quotas > 0 && quotas == quotasOver {
		e.Refused = true
		e.Notes = append(e.Notes, "all descriptors in quota_mode are over")
	}
	if e.Refused && !retryAt.IsZero() && !retryAt.Equal(decision.Never) {
		e.RetryAt = &retryAt
	}
	return failed
}

// Refusers returns the rules that refuse, or the policies of counts without a rule.
func (e *Explanation) Refusers() (names []string) {
	for i := range e.Counts {
		row := &e.Counts[i]
		if name := cmp.Or(row.Rule, row.Policy); row.Refused && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Descriptors returns the counts of a request's descriptors. It adds to e.Notes which of them have
// no rule, or are not charged; if none has a rule, it returns an error.
func (e *Explanation) Descriptors(s *inspect.Service, domain string, descriptors [][]inspect.Entry) (matches []inspect.Match, err error) {
	var wrong []error
	for i, entries := range descriptors {
		found, err := s.Descriptor(domain, entries)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		for _, m := range found {
			m.Descriptor = i
			matches = append(matches, m)
		}
	}
	if len(matches) == 0 {
		return nil, errors.Join(wrong...)
	}
	for _, err := range wrong {
		e.Notes = append(e.Notes, err.Error())
	}
	replaced := func(m inspect.Match) bool {
		return m.Name != "" && slices.ContainsFunc(matches, func(o inspect.Match) bool { return slices.Contains(o.Replaces, m.Name) })
	}
	for _, m := range matches {
		if replaced(m) {
			e.Notes = append(e.Notes, fmt.Sprintf("%s is not charged: another descriptor of the request replaces %q", m.Rule, m.Name))
		}
	}
	return slices.DeleteFunc(slices.Clone(matches), replaced), nil
}

// Request is a request to explain.
type Request struct {
	// Args are a domain and the entries of descriptors, with a + between two descriptors; or the URL
	// of a request to forward auth from IP; or a key, if there are Policies.
	Args     []string    `json:"args"`
	Policies []string    `json:"policies,omitempty"`
	IP       string      `json:"ip,omitempty"`
	Method   string      `json:"method,omitempty"`
	Header   http.Header `json:"header,omitempty"`
}

// Matches returns the counts that r is charged to, and adds notes to e. The error is a WrongRequest
// if r is no request.
func (r *Request) Matches(s *inspect.Service, e *Explanation) ([]inspect.Match, error) {
	switch {
	case len(r.Args) == 0:
		return nil, WrongRequest{errors.New("there are no arguments")}
	case len(r.Policies) > 0:
		if len(r.Args) > 1 {
			return nil, WrongRequest{fmt.Errorf("-policy is set, and there are %d arguments; there must be one key", len(r.Args))}
		}
		return s.Key(r.Policies, Key(r.Args[0]))
	case strings.Contains(r.Args[0], "://"):
		if r.IP == "" {
			return nil, WrongRequest{errors.New("-ip is not set; it must be the client's address")}
		}
		req, err := http.NewRequest(r.Method, r.Args[0], nil)
		if err != nil || req.URL.Host == "" || len(r.Args) > 1 {
			return nil, WrongRequest{fmt.Errorf("the request is %q; it must be a URL, such as https://example.com/login", r.Args)}
		}
		for name, values := range r.Header {
			for _, value := range values {
				req.Header.Add(name, value)
			}
		}
		return s.Forwarded(r.IP, req)
	case len(r.Args) == 1:
		return nil, WrongRequest{errors.New("there is no descriptor; there must be entries after the domain, such as api_key=k7, or -policy must be set")}
	}
	descriptors, err := ParseDescriptors(r.Args[1:])
	if err != nil {
		return nil, WrongRequest{err}
	}
	return e.Descriptors(s, r.Args[0], descriptors)
}

// WrongRequest is an error of arguments.
type WrongRequest struct{ error }

// ParseDescriptors returns the entries of each descriptor of words such as api_key=k7. Descriptors
// have a + between them.
func ParseDescriptors(args []string) (descriptors [][]inspect.Entry, err error) {
	for len(args) > 0 {
		n := slices.Index(args, "+")
		if n < 0 {
			n = len(args)
		}
		var entries []inspect.Entry
		for _, arg := range args[:n] {
			key, value, ok := strings.Cut(arg, "=")
			if !ok {
				return nil, fmt.Errorf("the entry is %q; it must be KEY=VALUE", arg)
			}
			entries = append(entries, inspect.Entry{Key: key, Value: value})
		}
		descriptors, args = append(descriptors, entries), args[min(n+1, len(args)):]
	}
	return descriptors, nil
}
