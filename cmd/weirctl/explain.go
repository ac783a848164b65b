package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/local/consistency"
)

// explained is the output of explain.
type explained struct {
	operator.Explanation
	from bool // a process answered, and not the store
}

func explain(c *command) subcommand {
	o := new(counts)
	o.define(c.flags)
	q := &operator.Request{Header: make(http.Header)}
	c.flags.StringVar(&q.IP, "ip", "", "the client's `address`, of a request to forward auth")
	c.flags.StringVar(&q.Method, "method", http.MethodGet, "the `method` of a request to forward auth")
	c.flags.Func("header", "a `header` of a request to forward auth, as \"X-API-Key: k7\"; once for each", func(text string) error {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return errors.New("it must be a name, a colon and a value")
		}
		q.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	from := c.flags.String("from", "", "the `URL` of a process' debug page, such as http://127.0.0.1:6070/debug/weir, that says what it counts, in place of the store: for synced limits, counts in memory, and descriptors of a management server")
	const (
		line = "explain [-from URL | -config FILE | -env FILE] DOMAIN KEY=VALUE... [+ KEY=VALUE...]..., or explain -ip ADDRESS [-method M] [-header H]... URL, or explain -policy NAME KEY"
		args = "a domain and the entries of each descriptor, such as edge api_key=k7; or a URL, with -ip; or a key, with -policy"
	)
	return subcommand{line, 1, -1, args, func(ctx context.Context) (err error) {
		var e explained
		q.Args, q.Policies = c.args, o.names
		if *from != "" {
			if err := e.ask(ctx, c, *from, q); err != nil {
				return err
			}
			return e.print(c)
		}
		r, err := o.open()
		if err != nil {
			return err
		}
		defer closing(r)
		var matches []inspect.Match
		if len(o.limits) > 0 && len(c.args) == 1 {
			matches, err = o.matches(r, operator.Key(c.args[0]))
		} else {
			matches, err = q.Matches(r.Service, &e.Explanation)
		}
		var wrong operator.WrongRequest
		if errors.As(err, &wrong) {
			return errUsage{err}
		}
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

// ask asks a process about a request. It charges nothing.
func (e *explained) ask(ctx context.Context, c *command, from string, q *operator.Request) error {
	u, err := parseURL("-from", from)
	if err != nil {
		return err
	}
	c.flags.Visit(func(f *flag.Flag) {
		if slices.Contains([]string{"config", "env", "own", "backend", "within", "limit"}, f.Name) {
			err = usage("-%s is set, and -from, too; it must be left out: the process has its own", f.Name)
		}
	})
	if err != nil {
		return err
	}
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	u = u.JoinPath("client")
	u.RawQuery = url.Values{"explain": {string(text)}}.Encode()
	if err := get(ctx, u, &e.Explanation); err != nil {
		u.RawQuery = ""
		return fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	e.from = true
	return nil
}

func (e *explained) print(c *command) error {
	if c.json {
		return printJSON(c.out, e)
	}
	now := time.Now()
	verdict := "allowed: the next request of one unit fits"
	if !e.from && slices.ContainsFunc(e.Counts, func(row operator.Row) bool { return row.Level == consistency.Synced.String() && row.Override == nil }) {
		verdict = "no count of the store refuses; of what is synced, the processes have the counts: ask one by -from, such as -from http://127.0.0.1:6070/debug/weir"
	}
	if e.Refused {
		verdict = "refused by " + strings.Join(e.Refusers(), ", ")
		if e.RetryAt != nil {
			verdict += " until " + operator.When(*e.RetryAt, now)
		}
	}
	fmt.Fprintln(c.out, verdict)
	for _, note := range e.Notes {
		fmt.Fprintln(c.out, "note:", note)
	}
	return printCounts(c, e.Counts, true, e.from)
}
