package main

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
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler/decision"
)

// explained is the output of explain.
type explained struct {
	Refused bool       `json:"refused"`
	RetryAt *time.Time `json:"retry_at,omitempty"` // when the request fits; nil if it is not refused, or never
	Counts  []shown    `json:"counts"`
	Notes   []string   `json:"notes,omitempty"`
}

func explain(c *command) subcommand {
	o := new(counts)
	o.define(c.flags)
	ip := c.flags.String("ip", "", "the client's `address`, of a request to forward auth")
	method := c.flags.String("method", http.MethodGet, "the `method` of a request to forward auth")
	header := make(http.Header)
	c.flags.Func("header", "a `header` of a request to forward auth, as \"X-API-Key: k7\"; once for each", func(text string) error {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return errors.New("it must be a name, a colon and a value")
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	from := c.flags.String("from", "", "the `URL` of a throttlerd, such as http://127.0.0.1:8080, that says what it counts, in place of the store: for synced limits, counts in memory, and descriptors of a management server")
	const (
		line = "explain [-from URL | -config FILE | -env FILE] DOMAIN KEY=VALUE... [+ KEY=VALUE...]..., or explain -ip ADDRESS [-method M] [-header H]... URL, or explain -policy NAME KEY"
		args = "a domain and the entries of each descriptor, such as edge api_key=k7; or a URL, with -ip; or a key, with -policy"
	)
	return subcommand{line, 1, -1, args, func(ctx context.Context) error {
		var e explained
		if *from != "" {
			if err := e.ask(ctx, *from, c.args); err != nil {
				return err
			}
			return e.print(c)
		}
		r, err := o.open()
		if err != nil {
			return err
		}
		defer closing(r)
		matches, err := o.matchesOf(r, c.args, *ip, *method, header, &e)
		if err != nil {
			return err
		}
		failed := e.explain(ctx, r, matches)
		if err := e.print(c); err != nil {
			return err
		}
		if failed > 0 {
			return fmt.Errorf("%d counts could not be read", failed)
		}
		return nil
	}}
}

// matchesOf returns the counts that the request in the arguments is charged to.
func (o *counts) matchesOf(r *counter, args []string, ip, method string, header http.Header, e *explained) ([]inspect.Match, error) {
	switch {
	case len(o.names) > 0:
		if len(args) != 1 {
			return nil, usage("-policy is set, and there are %d arguments; there must be one key", len(args))
		}
		return o.matches(r, key(args[0]))
	case strings.Contains(args[0], "://"):
		if ip == "" {
			return nil, usage("-ip is not set; it must be the client's address")
		}
		req, err := http.NewRequest(method, args[0], nil)
		if err != nil || len(args) > 1 {
			return nil, usage("the request is %q; it must be a URL, such as https://example.com/login", args)
		}
		req.Header = header
		return r.service.Forwarded(ip, req)
	case len(args) == 1:
		return nil, usage("there is no descriptor; there must be entries after the domain, such as api_key=k7, or -policy must be set")
	}
	return descriptorsOf(r, args[0], args[1:], e)
}

// descriptorsOf returns the counts of descriptors, which have a + between them.
func descriptorsOf(r *counter, domain string, args []string, e *explained) (matches []inspect.Match, err error) {
	var wrong []error
	descriptors, err := parseDescriptors(args)
	if err != nil {
		return nil, err
	}
	for i, entries := range descriptors {
		found, err := r.service.Descriptor(domain, entries)
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

// parseDescriptors returns the entries of each descriptor.
func parseDescriptors(args []string) (descriptors [][]inspect.Entry, err error) {
	for len(args) > 0 {
		n := slices.Index(args, "+")
		if n < 0 {
			n = len(args)
		}
		var entries []inspect.Entry
		for _, arg := range args[:n] {
			key, value, ok := strings.Cut(arg, "=")
			if !ok {
				return nil, usage("the entry is %q; it must be KEY=VALUE", arg)
			}
			entries = append(entries, inspect.Entry{Key: key, Value: value})
		}
		descriptors, args = append(descriptors, entries), args[min(n+1, len(args)):]
	}
	return descriptors, nil
}

// explain reads the counts, and finds out which of them refuse.
func (e *explained) explain(ctx context.Context, r *counter, matches []inspect.Match) (failed int) {
	e.Counts = []shown{}
	var retryAt time.Time
	quotas, quotasOver := 0, 0
	for i := range matches {
		refusing := false
		for _, row := range r.show(ctx, &matches[i]) {
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

func (e *explained) print(c *command) error {
	if c.json {
		return printJSON(c.out, e)
	}
	now := time.Now()
	verdict := "allowed: the next request of one unit fits"
	if slices.ContainsFunc(e.Counts, func(row shown) bool { return row.Level == consistency.Synced.String() && row.Override == nil }) {
		verdict = "no count of the store refuses; of what is synced, the processes know the counts: explain -from URL asks one"
	}
	if e.Refused {
		var rules []string
		for i := range e.Counts {
			if row := &e.Counts[i]; row.Refused && !slices.Contains(rules, cmp.Or(row.Rule, row.Policy)) {
				rules = append(rules, cmp.Or(row.Rule, row.Policy))
			}
		}
		verdict = "refused by " + strings.Join(rules, ", ")
		if e.RetryAt != nil {
			verdict += " until " + when(*e.RetryAt, now)
		}
	}
	fmt.Fprintln(c.out, verdict)
	for _, note := range e.Notes {
		fmt.Fprintln(c.out, "note:", note)
	}
	return printCounts(c, e.Counts, true)
}
