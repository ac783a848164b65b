package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/local/consistency"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// counts are the flags that say where the counts are, and which a command is about.
type counts struct {
	file, backend, within string
	own, names            words
	limits                []string
}

// ofKey returns the command of that name for the counts of a key. It calls do with the store,
// and with a charge of one unit for the key under each requested policy.
func ofKey(c *command, name string, do func(ctx context.Context, s *config.Stack, all []throttler.Charge) error) subcommand {
	o := new(counts)
	o.define(c.flags)
	return subcommand{name + " [-config FILE] [-policy NAMES [-limit LIMIT]...] [-within KEY] [-backend NAME] [-own KEYS] KEY", 1, 1, "one key, as the program charges it, such as ip:203.0.113.7", func(ctx context.Context) error {
		s, policies, err := o.open()
		if err != nil {
			return err
		}
		defer closing(s)
		var all []throttler.Charge
		for _, p := range policies {
			all = append(all, throttler.Charge{Policy: p, Key: c.args[0], Cost: 1, Partition: o.within})
		}
		return do(ctx, s, all)
	}}
}

func (o *counts) define(f *flag.FlagSet) {
	f.StringVar(&o.file, "config", "", "the configuration `file` of the program, which says where counts are; $WEIR_CONFIG if not set")
	f.StringVar(&o.backend, "backend", "", "`name` of the backend to ask, such as redis; the one that serves if not set")
	f.StringVar(&o.within, "within", "", "the `key` that the count is within, as users within an organization; the key itself if not set")
	f.Var(&o.names, "policy", "`names` of policies; all of the file if not set")
	f.Func("limit", "a `limit` of the policy that -policy names, which the file then need not have; once for each limit, such as \"5 per 1m aligned\"", func(text string) error {
		o.limits = append(o.limits, text)
		return nil
	})
	f.Var(&o.own, "own", "`keys` at the top of the configuration that are the program's")
}

// open opens the store, and returns the requested policies.
func (o *counts) open() (*config.Stack, []*quota.Policy, error) {
	o.file = cmp.Or(o.file, os.Getenv("WEIR_CONFIG"))
	if o.file == "" {
		return nil, nil, usage("-config is not set; it must be the configuration file of the program, or WEIR_CONFIG must be")
	}
	c, err := config.Read(o.file, &config.Options{Program: anything(o.own), Observer: weirlog.New(slog.New(slog.DiscardHandler), nil), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	known := maps.Clone(c.Policies)
	for _, p := range c.DryRuns {
		known[p.Name] = p
	}
	if len(o.limits) > 0 {
		if len(o.names) != 1 {
			return nil, nil, usage("-limit is set, and -policy names %d policies; it must name one", len(o.names))
		}
		p := &quota.Policy{Name: o.names[0]}
		if p.Limits, err = parseLimits(o.limits); err == nil {
			err = p.Validate()
		}
		if err != nil {
			return nil, nil, err
		}
		known[p.Name] = p
	}
	names := o.names
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(known))
	}
	var all []*quota.Policy
	for _, name := range names {
		if known[name] == nil {
			right := "-limit must say its limits" // for example, limits of a descriptor in another file
			if len(known) > 0 {
				right = "it must be one of " + strings.Join(slices.Sorted(maps.Keys(known)), ", ") + ", or " + right
			}
			return nil, nil, usage("-policy is %q, which is no policy of %s; %s", name, o.file, right)
		}
		all = append(all, known[name])
	}
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("%s has no policies; write them there, as in policies: {core: 60 per 1h}, or name one that is elsewhere with -policy and -limit", o.file)
	}
	s, err := c.OpenStore(o.backend)
	return s, all, err
}

// shown is the count of a key under one limit.
type shown struct {
	Policy    string      `json:"policy"`
	Limit     quota.Limit `json:"limit"`
	Unit      quota.Unit  `json:"unit"`
	Used      int64       `json:"used"`
	Remaining int64       `json:"remaining"`
	ResetAt   *time.Time  `json:"reset_at,omitempty"` // nil if nothing is counted
	Refused   bool        `json:"refused"`            // whether one more unit would be refused
	RetryAt   *time.Time  `json:"retry_at,omitempty"` // when one more unit fits, if refused
	Level     string      `json:"consistency,omitempty"`
	Error     string      `json:"error,omitempty"`
}

func show(c *command) subcommand {
	return ofKey(c, "show", func(ctx context.Context, s *config.Stack, all []throttler.Charge) error {
		rows, failed := []shown{}, 0
		for _, charge := range all {
			d, err := s.Throttler.Peek(ctx, charge)
			if err != nil {
				failed++
				rows = append(rows, shown{Policy: charge.Policy.Name, Error: err.Error()})
				continue
			}
			for _, status := range d.Limits() {
				rows = append(rows, shownOf(s.Config, status.Policy.Name, &status, d.At()))
			}
		}
		if err := printCounts(c, rows); err != nil {
			return err
		}
		if failed > 0 {
			return fmt.Errorf("the counts of %d of %d policies could not be read", failed, len(all))
		}
		return nil
	})
}

func printCounts(c *command, rows []shown) error {
	if c.json {
		return printJSON(c.out, rows)
	}
	now := time.Now()
	t := newTable(c.out, "POLICY", "LIMIT", "USED", "REMAINING", "RESET", "NOTE")
	for _, r := range rows {
		if r.Error != "" {
			t.row(r.Policy, "-", "-", "-", "-", r.Error)
			continue
		}
		reset := "-"
		if r.ResetAt != nil {
			reset = when(*r.ResetAt, now)
		}
		t.row(r.Policy, textOf(r.Limit), r.Used, r.Remaining, reset, noteOf(&r, now))
	}
	return t.flush()
}

func closing(c io.Closer) { _ = c.Close() } // nothing was written that could be lost

func shownOf(c *config.Config, name string, s *decision.Status, now time.Time) shown {
	r := shown{
		Policy: name, Limit: s.Limit, Unit: s.Policy.Unit, Used: s.Used, Remaining: s.Remaining, Refused: s.Refused,
	}
	if s.ResetAt.After(now) {
		r.ResetAt = &s.ResetAt
	}
	if s.Refused {
		r.RetryAt = &s.RetryAt
	}
	if level := c.Levels[strings.TrimSuffix(name, ".dry-run")]; level != consistency.Exact {
		r.Level = level.String()
	}
	return r
}

// noteOf explains the numbers.
func noteOf(r *shown, now time.Time) string {
	var all []string
	switch {
	case r.ResetAt == nil:
		all = append(all, "nothing is counted")
	case r.Refused:
		all = append(all, "refused until "+when(*r.RetryAt, now))
	}
	switch r.Level {
	case consistency.Leased.String():
		all = append(all, "leased: units that processes hold count as used")
	case consistency.Synced.String():
		all = append(all, "synced: processes count, and this store does not")
	}
	return cmp.Or(strings.Join(all, "; "), "-")
}

func reset(c *command) subcommand {
	return ofKey(c, "reset", func(ctx context.Context, s *config.Stack, all []throttler.Charge) (err error) {
		names, failed := []string{}, []error(nil)
		for _, charge := range all { // one by one, so that a failure does not stop the rest
			if err := s.Throttler.Reset(ctx, charge); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", charge.Policy.Name, err))
				continue
			}
			names = append(names, charge.Policy.Name)
		}
		if c.json {
			err = printJSON(c.out, map[string][]string{"reset": names})
		} else if len(names) > 0 {
			_, err = fmt.Fprintf(c.out, "nothing is counted any more under %s\n", strings.Join(names, ", "))
		}
		return errors.Join(append(failed, err)...)
	})
}
