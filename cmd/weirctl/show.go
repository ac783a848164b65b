package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// program are the flags that name a program's configuration.
type program struct {
	file, env string
	extra     words
}

func (o *program) define(f *flag.FlagSet) {
	f.StringVar(&o.file, "config", "", "the configuration `file` of the program, which says where counts are; $WEIR_CONFIG if not set")
	f.StringVar(&o.env, "env", "", "a `file` with throttlerd's environment, a NAME=VALUE in each line; this process' variables hold for the rest")
	f.Var(&o.extra, "own", "`keys` at the top of the configuration that are the program's")
}

const configMustBe = "-config is not set; it must be the configuration file of the program, or WEIR_CONFIG must be, or -env must be a file with throttlerd's environment"

// read reads the configuration. The error wraps inspect.ErrNothing if there is none.
func (o *program) read() (*inspect.Service, error) {
	environ := os.Environ()
	if o.env != "" {
		text, err := os.ReadFile(o.env)
		if err != nil {
			return nil, fmt.Errorf("-env: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
			name, value, ok := strings.Cut(line, "=")
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if !ok {
				return nil, fmt.Errorf("-env: %s has the line %q; it must be NAME=VALUE", o.env, line)
			}
			if unquoted, err := strconv.Unquote(value); err == nil {
				value = unquoted
			}
			environ = append(environ, name+"="+strings.Trim(value, "'"))
		}
	}
	if o.file != "" {
		environ = append(environ, "WEIR_CONFIG="+o.file)
	}
	return inspect.Read(environ, o.extra)
}

// counts are the flags of commands about counts.
type counts struct {
	program
	backend, fitting string
	names            words
	limits           []string
}

func (o *counts) define(f *flag.FlagSet) {
	o.program.define(f)
	f.StringVar(&o.backend, "backend", "", "`name` of the backend to ask, such as redis; the one that serves if not set")
	f.StringVar(&o.fitting, "within", "", "the `key` that the count is within, as users within an organization; the key itself if not set")
	f.Var(&o.names, "policy", "`names` of policies; all of the file if not set")
	f.Func("limit", "a `limit` of the policy that -policy names, which the file then need not have; once for each limit, such as \"5 per 1m aligned\"", func(text string) error {
		o.limits = append(o.limits, text)
		return nil
	})
}

// counter reads and resets counts.
type counter struct {
	operator.Counts
	stack   *config.Stack
	closers []func() error
}

func (o *counts) open() (*counter, error) {
	service, err := o.read()
	if errors.Is(err, inspect.ErrNothing) {
		return nil, usage(configMustBe)
	}
	if err != nil {
		return nil, err
	}
	r := &counter{Counts: operator.Counts{Service: service, Partition: o.fitting}}
	if r.stack, err = service.Config.OpenStore(o.backend); err != nil {
		return nil, err
	}
	r.Throttler, r.closers = r.stack.Throttler, append(r.closers, r.stack.Close)
	if service.Overrides {
		var end func() error
		if r.Store, end, err = service.Config.OpenPolicies(); err == nil && end != nil {
			r.closers = append(r.closers, end)
		}
	}
	return r, err
}

// Close closes what was opened.
func (r *counter) Close() error {
	for _, end := range r.closers {
		_ = end() // nothing was written that could be lost
	}
	return nil
}

// matches returns the counts of a key under the requested policies.
func (o *counts) matches(r *counter, key string) ([]inspect.Match, error) {
	if len(o.limits) > 0 {
		if len(o.names) != 1 {
			return nil, usage("-limit is set, and -policy names %d policies; it must name one", len(o.names))
		}
		p := &quota.Policy{Name: o.names[0]}
		var err error
		if p.Limits, err = parseLimits(o.limits); err == nil {
			err = p.Validate()
		}
		return []inspect.Match{{Policy: p, Key: key}}, err
	}
	matches, err := r.Service.Key(o.names, key)
	if err == nil && len(matches) == 0 {
		err = fmt.Errorf("%s has no policies; write them there, as in policies: {core: 60 per 1h}, or name one that is elsewhere with -policy and -limit", r.Service.Config.File)
	}
	if err != nil && slices.ContainsFunc(o.names, func(name string) bool { return !r.Service.Contains(r.Service.PolicyName(name)) }) {
		err = usage("%w, or -limit must say its limits", err)
	}
	return matches, err
}

func show(c *command) subcommand {
	o := new(counts)
	o.define(c.flags)
	keys := c.flags.String("keys", "", "a `file` with a key, or an address, in each line, in which to find the hash in the argument; - for the standard input")
	const line = "show [-config FILE | -env FILE] [-policy NAMES [-limit LIMIT]...] [-within KEY] [-backend NAME] [-own KEYS] KEY, or show -keys FILE HASH"
	return subcommand{line, 1, 1, "one key, as the program charges it, such as ip:203.0.113.7", func(ctx context.Context) error {
		r, err := o.open()
		if err != nil {
			return err
		}
		defer closing(r)
		k := operator.Key(c.args[0])
		if isHash(k) {
			if k, err = r.keyOf(ctx, k, *keys); err != nil {
				return err
			}
			if !c.json {
				fmt.Fprintf(c.out, "the key is %s\n", operator.Printable(k))
			}
		}
		matches, err := o.matches(r, k)
		if err != nil {
			return err
		}
		rows, failed := r.ShowAll(ctx, matches)
		if err := printCounts(c, rows, false, false); err != nil {
			return err
		}
		if failed > 0 {
			return fmt.Errorf("the counts of %d of %d policies could not be read", failed, len(matches))
		}
		return r.UnlessMeant(ctx, matches, rows, k)
	}}
}

// printCounts prints counts of the store or, if running, of a process.
func printCounts(c *command, rows []operator.Row, rules, running bool) error {
	if c.json {
		return printJSON(c.out, rows)
	}
	now := time.Now()
	head := []any{"POLICY", "LIMIT", "USED", "REMAINING", "RESET", "NOTE"}
	if rules {
		head = append([]any{"RULE", "KEY"}, head...)
	}
	t := newTable(c.out, head...)
	for _, row := range rows {
		cells := []any{row.Policy, "-", "-", "-", "-", cmp.Or(row.Error, noteOf(&row, now, running))}
		if row.Limit != nil {
			reset := "-"
			if row.ResetAt != nil {
				reset = operator.When(*row.ResetAt, now)
			}
			copy(cells[1:], []any{operator.LimitText(*row.Limit), row.Used, row.Remaining, reset})
		}
		if rules {
			cells = append([]any{cmp.Or(row.Rule, "-"), operator.Printable(row.Key)}, cells...)
		}
		t.row(cells...)
	}
	return t.flush()
}

func closing(c io.Closer) { _ = c.Close() } // nothing was written that could be lost

// noteOf explains the numbers.
func noteOf(row *operator.Row, now time.Time, running bool) string {
	matches := row.Notes
	switch {
	case row.Refused && row.RetryAt != nil && row.RetryAt.Equal(decision.Never), row.Refused && row.RetryAt == nil:
		matches = append(matches, "refused")
	case row.Refused:
		matches = append(matches, "refused until "+operator.When(*row.RetryAt, now))
	case row.Limit != nil && row.ResetAt == nil:
		matches = append(matches, "nothing is counted")
	}
	if o := row.Override; o != nil {
		text := "override"
		if o.Owner != "" {
			text += " of " + operator.Printable(o.Owner)
		}
		if o.Reason != "" {
			text += ": " + operator.Printable(o.Reason)
		}
		if !o.Until.IsZero() && !o.Blocked {
			text += ", until " + operator.When(o.Until, now)
		}
		matches = append(matches, text)
	}
	switch {
	case row.Level == consistency.Leased.String():
		matches = append(matches, "leased: units that processes hold count as used")
	case row.Level == consistency.Synced.String() && running:
		matches = append(matches, "synced: as this process counts")
	case row.Level == consistency.Synced.String():
		matches = append(matches, "synced: processes count, and this store does not")
	}
	return cmp.Or(strings.Join(matches, "; "), "-")
}

func reset(c *command) subcommand {
	o := new(counts)
	o.define(c.flags)
	return subcommand{"reset [-config FILE | -env FILE] [-policy NAMES [-limit LIMIT]...] [-within KEY] [-backend NAME] [-own KEYS] KEY", 1, 1, "one key, as the program charges it, such as ip:203.0.113.7", func(ctx context.Context) error {
		r, err := o.open()
		if err != nil {
			return err
		}
		defer closing(r)
		k := operator.Key(c.args[0])
		matches, err := o.matches(r, k)
		if err != nil {
			return err
		}
		rows, failedReads := r.ShowAll(ctx, matches)
		counted, synced := failedReads > 0, false
		for i := range rows {
			counted = counted || rows[i].IsCounted()
			synced = synced || rows[i].Level == consistency.Synced.String()
		}
		if !counted {
			if err := r.UnlessMeant(ctx, matches, rows, k); err != nil || !synced {
				return cmp.Or(err, fmt.Errorf("nothing is counted for %s under %s; write the key as the program charges it, such as ip:203.0.113.7 or subject:alice", operator.Printable(k), namesOf(matches)))
			}
		}
		names, failed := []string{}, []error(nil)
		for _, m := range matches { // one by one, so that a failure does not stop the rest
			charge, reset := throttler.Charge{Policy: m.Policy, Key: k, Partition: o.fitting}, r.stack.Throttler.Reset
			if m.Level == consistency.Synced {
				reset = r.resetSynced
			}
			if err := reset(ctx, charge); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", m.Policy.Name, err))
				continue
			}
			names = append(names, m.Policy.Name)
		}
		if c.json {
			err = printJSON(c.out, map[string][]string{"reset": names})
		} else if len(names) > 0 {
			_, err = fmt.Fprintf(c.out, "nothing is counted any more under %s\n", strings.Join(names, ", "))
		}
		return errors.Join(append(failed, err)...)
	}}
}

// resetSynced resets a count at the roots, from which the processes hear of it.
func (r *counter) resetSynced(ctx context.Context, charges ...throttler.Charge) error {
	s, err := r.Service.Config.OpenSynced()
	if err != nil {
		return err
	}
	err = s.Throttler.Reset(ctx, charges...)
	closing(s) // sends it
	if err != nil {
		return err
	}
	if d, err := s.Throttler.Peek(ctx, charges...); err != nil || d.Degraded {
		return cmp.Or(err, errors.New("no root of the count answers, so no process has heard of the reset; check the servers in roots"))
	}
	return nil
}

func namesOf(matches []inspect.Match) string {
	var names []string
	for _, m := range matches {
		names = append(names, m.Policy.Name)
	}
	return strings.Join(names, ", ")
}
