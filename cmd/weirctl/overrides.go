package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

func listOverrides(c *command) subcommand {
	o := serverOf(c.flags)
	policy := c.flags.String("policy", "", "`name` of a policy; overrides of all if not set")
	key := c.flags.String("key", "", "the `key`; overrides of all if not set")
	return subcommand{"overrides [-redis ADDR] [-policy NAME] [-key KEY]", 0, 0, "none; overrides set and overrides remove have some", func(ctx context.Context) error {
		return o.withStore(func(s *redispolicies.Store) error {
			found := make(map[[2]string]policies.Override) // an override that changes during the scan may come twice
			err := s.Overrides(ctx, func(v policies.Override) bool {
				if (*policy == "" || v.Policy == *policy) && (*key == "" || v.Key == *key) {
					found[[2]string{v.Policy, v.Key}] = v
				}
				return true
			})
			if err != nil {
				return err
			}
			return printOverrides(c, slices.SortedFunc(maps.Values(found), func(a, b policies.Override) int {
				return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Key, b.Key))
			}))
		})
	}}
}

func printOverrides(c *command, list []policies.Override) error {
	if c.json {
		return printJSON(c.out, append([]policies.Override{}, list...))
	}
	now := time.Now()
	t := newTable(c.out, "POLICY", "KEY", "HOLDS", "UNTIL", "OWNER", "REASON")
	for _, v := range list {
		t.row(v.Policy, operator.Printable(v.Key), operator.Holds(&v), operator.When(v.Until, now), cmp.Or(v.Owner, "-"), cmp.Or(v.Reason, "-"))
	}
	return t.flush()
}

func setOverride(c *command) subcommand {
	o, e, v := serverOf(c.flags), endOf(c.flags), new(policies.Override)
	c.flags.BoolVar(&v.Blocked, "blocked", false, "refuse the key")
	c.flags.BoolVar(&v.Unlimited, "unlimited", false, "allow the key everything")
	c.flags.StringVar(&v.ParentKey, "parent-key", "", "the `key` that the policy's parent is charged for")
	c.flags.StringVar(&v.Owner, "owner", "", "the `team` or person that sets it; $USER if not set")
	c.flags.StringVar(&v.Reason, "reason", "", "`why`")
	c.flags.BoolVar(&o.unchecked, "unchecked", false, "set it even if no program is known to have the policy, or to charge the key")
	const (
		line = "overrides set [-redis ADDR] [-for 1h | -until TIME] [-owner TEAM] [-reason WHY] [-parent-key KEY] POLICY KEY [-blocked | -unlimited | LIMIT...]"
		args = "a policy and a key, such as core ip:203.0.113.7, and then limits, unless -blocked, -unlimited or -parent-key is set"
	)
	return subcommand{line, 2, -1, args, func(ctx context.Context) (err error) {
		if v.Until, err = e.read(); err != nil {
			return err
		}
		v.Policy, v.Key, v.Owner = c.args[0], operator.Key(c.args[1]), cmp.Or(v.Owner, os.Getenv("USER"))
		if v.Limits, err = parseLimits(c.args[2:]); err != nil {
			return err
		}
		if service, err := o.read(); err == nil {
			v.Policy = service.PolicyName(v.Policy)
		}
		if err := v.Validate(); err != nil {
			return errUsage{err}
		}
		if err := o.withStore(func(s *redispolicies.Store) error {
			name, note, err := o.target(ctx, s, v.Policy, v.Key)
			if err != nil {
				return err
			}
			if v.Policy = name; note != "" && !c.json {
				fmt.Fprintln(c.out, "note:", note)
			}
			before, err := s.Find(ctx, v.Policy, v.Key)
			if before != nil {
				c.keepOverride(v, before)
			}
			return unlessInvalid(err)
		}); err != nil {
			return err
		}
		return o.write(ctx, c, redispolicies.Change{Override: []policies.Override{*v}})
	}}
}

// keepOverride copies the parent key of was to v or, if only -parent-key is set, the rest of
// was.
func (c *command) keepOverride(v, before *policies.Override) {
	if !c.isSet("parent-key") {
		v.ParentKey = before.ParentKey
	}
	if v.Blocked || v.Unlimited || len(v.Limits) > 0 || !before.Until.IsZero() && before.Until.Before(time.Now()) {
		return
	}
	v.Blocked, v.Unlimited, v.Limits = before.Blocked, before.Unlimited, before.Limits
	if v.Until.IsZero() {
		v.Until = before.Until
	}
	if !c.isSet("owner") {
		v.Owner = before.Owner
	}
	v.Reason = cmp.Or(v.Reason, before.Reason)
}

func removeOverride(c *command) subcommand {
	o := serverOf(c.flags)
	return subcommand{"overrides remove [-redis ADDR] POLICY KEY", 2, 2, "a policy and a key, such as core ip:203.0.113.7", func(ctx context.Context) error {
		if err := o.withStore(func(s *redispolicies.Store) error {
			if service, err := o.read(); err == nil {
				c.args[0] = service.PolicyName(c.args[0])
			}
			c.args[1] = operator.Key(c.args[1])
			v, err := s.Find(ctx, c.args[0], c.args[1])
			if err == nil && v == nil {
				return fmt.Errorf("policy %q has no override for %s; overrides lists them", c.args[0], operator.Printable(c.args[1]))
			}
			return unlessInvalid(err)
		}); err != nil {
			return err
		}
		return o.write(ctx, c, redispolicies.Change{RemoveOverrides: []policies.Override{{Policy: c.args[0], Key: c.args[1]}}})
	}}
}

func removeEnded(c *command) subcommand {
	o := serverOf(c.flags)
	return subcommand{"overrides remove-ended [-redis ADDR]", 0, 0, "none", func(ctx context.Context) error {
		return o.withStore(func(s *redispolicies.Store) error {
			found, err := s.RemoveEnded(ctx, time.Now())
			if err != nil {
				return err
			}
			if c.json {
				return printJSON(c.out, map[string]int{"found": found})
			}
			_, err = fmt.Fprintf(c.out, "%d overrides had ended\n", found)
			return err
		})
	}}
}
