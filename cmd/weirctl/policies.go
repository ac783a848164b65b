package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/config"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

func listPolicies(c *command) subcommand {
	o := serverOf(c.flags)
	return subcommand{"policies [-redis ADDR] [-prefix P]", 0, 0, "none; policies set and policies remove have some", func(ctx context.Context) error {
		return o.withStore(func(s *redispolicies.Store) error {
			list, version, err := s.Read(ctx)
			if err != nil {
				return err
			}
			slices.SortFunc(list, func(a, b *quota.Policy) int { return cmp.Compare(a.Name, b.Name) })
			if c.json {
				return printJSON(c.out, map[string]any{"version": version, "policies": append([]*quota.Policy{}, list...)})
			}
			now := time.Now()
			fmt.Fprintf(c.out, "version %d\n", version)
			t := newTable(c.out, "POLICY", "LIMITS", "UNIT", "PARENT", "UNTIL")
			for _, p := range list {
				parent := "-"
				if p.Parent != "" {
					parent = p.Parent + " of " + operator.Printable(p.ParentKey)
				}
				t.row(p.Name, operator.LimitTexts(p.Limits), p.Unit, parent, operator.When(p.Until, now))
			}
			return t.flush()
		})
	}}
}

func setPolicy(c *command) subcommand {
	o, e, p := serverOf(c.flags), endOf(c.flags), new(quota.Policy)
	c.flags.TextVar(&p.Unit, "unit", quota.Requests, "the `unit` of the quotas: requests, tokens, input-tokens or output-tokens")
	c.flags.BoolVar(&p.Hidden, "hidden", false, "keep the policy out of answers to clients")
	c.flags.StringVar(&p.Parent, "parent", "", "`name` of the policy that is charged as well; \"\" for none")
	c.flags.StringVar(&p.ParentKey, "parent-key", "", "the `key` that the parent is charged for")
	c.flags.BoolVar(&o.unchecked, "unchecked", false, "set it even if its name is nearly one of the program's")
	const line = "policies set [-redis ADDR] [-unit UNIT] [-hidden] [-parent NAME -parent-key KEY] [-for 1h | -until TIME] NAME LIMIT..."
	return subcommand{line, 2, -1, `a name and limits, such as core "5000 per 1h" "100 per 1m"`, func(ctx context.Context) (err error) {
		if p.Until, err = e.read(); err != nil {
			return err
		}
		p.Name = c.args[0]
		if p.Limits, err = parseLimits(c.args[1:]); err != nil {
			return err
		}
		if err := o.withStore(func(s *redispolicies.Store) error {
			before, err := s.FindPolicy(ctx, p.Name)
			if before != nil {
				c.keep(p, before)
			} else if err == nil {
				err = o.checkName(p.Name)
			}
			return unlessInvalid(err)
		}); err != nil {
			return err
		}
		return o.write(ctx, c, redispolicies.Change{Set: []*quota.Policy{p}})
	}}
}

// checkName returns an error if a new policy has nearly the name of one of the program's files. Other
// names may be those of plans and parents.
func (o *server) checkName(name string) error {
	if o.unchecked {
		return nil
	}
	service, err := o.read()
	if err != nil {
		return nil //nolint:nilerr // nothing says which policies the program has
	}
	if service.Contains(name) || service.Remote() || config.Nearest(name, service.Names()) == "" {
		return nil
	}
	return fmt.Errorf("%w; -unchecked sets it all the same", service.Unknown(name))
}

// keep copies the unit, the parent and hidden of before to p, unless options set them.
func (c *command) keep(p, before *quota.Policy) {
	if !c.isSet("unit") {
		p.Unit = before.Unit
	}
	if !c.isSet("hidden") {
		p.Hidden = before.Hidden
	}
	if !c.isSet("parent") {
		p.Parent = before.Parent
		if !c.isSet("parent-key") {
			p.ParentKey = before.ParentKey
		}
	}
}

// isSet reports whether the arguments have a flag.
func (c *command) isSet(name string) (set bool) {
	c.flags.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// unlessInvalid returns err, or nil if err is about a stored value: the change may repair it.
func unlessInvalid(err error) error {
	if errors.Is(err, quota.ErrInvalid) {
		return nil
	}
	return err
}

func parseLimits(texts []string) (list []quota.Limit, err error) {
	for _, text := range texts {
		l, err := quota.ParseLimit(text)
		if err != nil {
			return nil, errUsage{err}
		}
		list = append(list, l)
	}
	return list, nil
}

func removePolicies(c *command) subcommand {
	o := serverOf(c.flags)
	return subcommand{"policies remove [-redis ADDR] NAME...", 1, -1, "the name of a policy at least", func(ctx context.Context) error {
		if err := o.withStore(func(s *redispolicies.Store) error {
			var errs []error
			for _, name := range c.args {
				p, err := s.FindPolicy(ctx, name)
				if p == nil && err == nil {
					err = fmt.Errorf("there is no policy %q; policies lists them", name)
				}
				errs = append(errs, unlessInvalid(err))
			}
			return errors.Join(errs...)
		}); err != nil {
			return err
		}
		return o.write(ctx, c, redispolicies.Change{Remove: c.args})
	}}
}

// end is the end of a policy or an override, as given by two flags.
type end struct {
	instant time.Time
	after   *time.Duration
}

// endOf defines the flags of a command that name an end.
func endOf(f *flag.FlagSet) *end {
	e := new(end)
	f.Func("until", "`when` it ends, as 2030-01-02T03:04:05Z; never if neither -until nor -for is set", func(text string) error {
		return e.instant.UnmarshalText([]byte(text))
	})
	f.Func("for", "after which `duration` it ends, such as 1h", func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("it must be a duration, such as 1h")
		}
		e.after = &d
		return nil
	})
	return e
}

// read returns the end, or the zero time if it is not set.
func (e *end) read() (time.Time, error) {
	switch {
	case e.after != nil && *e.after <= 0:
		return time.Time{}, usage("-for is %v; it must be above zero, such as 1h", *e.after)
	case e.after != nil && !e.instant.IsZero():
		return time.Time{}, usage("-for and -until are set; it must be one of them")
	case e.after != nil:
		return time.Now().Add(*e.after).UTC().Truncate(time.Second), nil
	case !e.instant.IsZero() && e.instant.Before(time.Now()):
		return time.Time{}, usage("-until is %s, which is over; it must be in the future", e.instant.Format(time.RFC3339))
	}
	return e.instant, nil
}
