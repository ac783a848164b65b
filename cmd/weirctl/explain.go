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

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/local/consistency"
)

// explained is the output of explain.
type explained struct{ operator.Explanation }

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
		failed := e.Explain(ctx, &r.Counts, matches)
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
		return o.matches(r, operator.Key(args[0]))
	case strings.Contains(args[0], "://"):
		if ip == "" {
			return nil, usage("-ip is not set; it must be the client's address")
		}
		req, err := http.NewRequest(method, args[0], nil)
		if err != nil || len(args) > 1 {
			return nil, usage("the request is %q; it must be a URL, such as https://example.com/login", args)
		}
		req.Header = header
		return r.Service.Forwarded(ip, req)
	case len(args) == 1:
		return nil, usage("there is no descriptor; there must be entries after the domain, such as api_key=k7, or -policy must be set")
	}
	descriptors, err := descriptorsOf(args[1:])
	if err != nil {
		return nil, err
	}
	return e.Descriptors(r.Service, args[0], descriptors)
}

// descriptorsOf returns the entries of each descriptor in the arguments.
func descriptorsOf(args []string) ([][]inspect.Entry, error) {
	descriptors, err := operator.ParseDescriptors(args)
	if err != nil {
		return nil, errUsage{err}
	}
	return descriptors, nil
}

func (e *explained) print(c *command) error {
	if c.json {
		return printJSON(c.out, e)
	}
	now := time.Now()
	verdict := "allowed: the next request of one unit fits"
	if slices.ContainsFunc(e.Counts, func(row operator.Row) bool { return row.Level == consistency.Synced.String() && row.Override == nil }) {
		verdict = "no count of the store refuses; of what is synced, the processes know the counts: explain -from URL asks one about descriptors, and /debug/weir/client of one shows any client"
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
			verdict += " until " + operator.When(*e.RetryAt, now)
		}
	}
	fmt.Fprintln(c.out, verdict)
	for _, note := range e.Notes {
		fmt.Fprintln(c.out, "note:", note)
	}
	return printCounts(c, e.Counts, true)
}
