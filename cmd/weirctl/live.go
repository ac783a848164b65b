package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// server is the Redis server of policies and overrides.
type server struct {
	program
	addr, prefix, ca string
	unchecked        bool
}

// serverOf defines the flags of a command that name a server.
func serverOf(f *flag.FlagSet) *server {
	o := new(server)
	f.StringVar(&o.addr, "redis", "", "`address` of the Redis server that keeps them, or a URL such as rediss://weir@redis.internal:6379/0, or redis://HOST:PORT?master_name=NAME of a Sentinel; $WEIR_REDIS if not set. The password is $REDISCLI_AUTH unless the URL has one")
	f.StringVar(&o.prefix, "prefix", redispolicies.DefaultPrefix, "the prefix of their Redis keys")
	o.define(f)
	f.StringVar(&o.ca, "cacert", "", "a PEM `file` of the CAs that signed the server's certificate, if the system does not trust them")
	return o
}

const redisMustBe = "a host and a port, such as 127.0.0.1:6379, or a URL, such as rediss://weir@redis.internal:6379/0"

// withStore calls do with the store.
func (o *server) withStore(do func(s *redispolicies.Store) error) error {
	o.addr = cmp.Or(o.addr, os.Getenv("WEIR_REDIS")) // not the flag's default: -h would print it, with a password
	if o.addr == "" {
		return o.withConfigured(do)
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	defer closing(client)
	return do(redispolicies.NewStore(client, o.prefix))
}

// withConfigured calls do with the store that the program's configuration names.
func (o *server) withConfigured(do func(s *redispolicies.Store) error) error {
	service, err := o.read()
	if err != nil && !errors.Is(err, inspect.ErrNothing) {
		return err
	}
	if service != nil && service.Overrides {
		s, end, err := service.Config.OpenPolicies()
		if err != nil {
			return err
		}
		if s != nil {
			defer func() { _ = end() }()
			return do(s)
		}
	}
	return usage("-redis is not set; it must be %s, or WEIR_REDIS must be, or policies_at in the file of -config, or -env must be throttlerd's environment", redisMustBe)
}

func (o *server) client() (redis.UniversalClient, error) {
	options := &redis.UniversalOptions{Addrs: []string{o.addr}}
	if strings.Contains(o.addr, "/") {
		var err error
		if options, err = redisbackend.ParseURL(o.addr); err != nil {
			return nil, errUsage{fmt.Errorf("-redis: %w", err)}
		}
	} else if host, port, err := net.SplitHostPort(o.addr); err != nil || host == "" || port == "" || strings.Contains(port, ",") {
		return nil, usage("-redis is %q; it must be %s", o.addr, redisMustBe)
	}
	options.Password = cmp.Or(options.Password, os.Getenv("REDISCLI_AUTH"))
	if o.ca != "" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("-cacert: %w", err)
		}
		options.TLSConfig = cmp.Or(options.TLSConfig, &tls.Config{MinVersion: tls.VersionTLS12})
		options.TLSConfig.RootCAs = x509.NewCertPool()
		if !options.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-cacert is %s, which has no certificate; it must be a file in PEM", o.ca)
		}
	}
	return redisbackend.NewClient(options)
}

// write makes a change, and prints the new version.
func (o *server) write(ctx context.Context, c *command, change redispolicies.Change) error {
	return o.withStore(func(s *redispolicies.Store) error {
		version, err := s.Write(ctx, change)
		if err != nil {
			return err
		}
		if c.json {
			return printJSON(c.out, map[string]int64{"version": version})
		}
		_, err = fmt.Fprintf(c.out, "version %d, which processes have within a second unless they are set to look more rarely\n", version)
		return err
	})
}

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
