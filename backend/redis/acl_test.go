package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature/isolated"
	"github.com/open-feature/go-sdk/openfeature/memprovider"
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// aclRules returns the rules that docs/reference/operations.md lists for each use, and the rules of its
// user for all uses but a cluster's.
func aclRules(t *testing.T) (uses []string, rules map[string][]string, together []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Redis ACL\n")
	if !ok {
		t.Fatal("docs/reference/operations.md has no section Redis ACL")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rules = make(map[string][]string)
	for _, line := range regexp.MustCompile(`(?m)^    ([A-Za-z].*[^ ])  +([~&+].*)$`).FindAllStringSubmatch(section, -1) {
		uses = append(uses, line[1])
		rules[line[1]] = strings.Fields(line[2])
	}
	setUser := regexp.MustCompile(`(?m)^    ACL SETUSER .*$`).FindString(section)
	for _, word := range strings.Fields(setUser) {
		if word[0] == '+' || word[0] == '~' {
			together = append(together, word)
		}
	}
	return uses, rules, together
}

// TestACL runs each use as a user with only the rules that docs/reference/operations.md lists for it,
// and then with each of these rules left out in turn.
func TestACL(t *testing.T) {
	t.Parallel() // it waits most of the time
	uses, rules, together := aclRules(t)
	exercises := map[string]struct {
		with []string // other uses with rules that it needs
		run  func(*aclServer) error
	}{
		"takes, refunds, settlements": {run: (*aclServer).takes},
		"sliding logs":                {with: []string{"takes, refunds, settlements"}, run: (*aclServer).logs},
		"peeks":                       {run: (*aclServer).peeks},
		"Backend.Load":                {run: (*aclServer).load},
		"checks of the servers":       {run: (*aclServer).checks},
		"guard/rollout":               {with: []string{"takes, refunds, settlements", "peeks"}, run: (*aclServer).moves},
		"a Redis Cluster":             {with: []string{"takes, refunds, settlements", "peeks"}, run: (*aclServer).cluster},
		"demo-api's check at its start": {run: func(s *aclServer) error {
			return s.login().Ping(context.Background()).Err()
		}},
	}
	for _, use := range uses {
		if _, ok := exercises[use]; !ok {
			t.Errorf("docs/reference/operations.md lists rules for %q, which nothing here tries", use)
		}
	}
	wanted := map[string]bool{}
	for _, use := range uses {
		for _, rule := range rules[use] {
			wanted[rule] = wanted[rule] || use != "a Redis Cluster"
		}
	}
	for _, rule := range together {
		if !wanted[rule] {
			t.Errorf("the user of all uses has %s, which no use lists", rule)
		}
		wanted[rule] = false
	}
	for rule, missing := range wanted {
		if missing {
			t.Errorf("the user of all uses lacks %s", rule)
		}
	}
	for use, e := range exercises {
		t.Run(use, func(t *testing.T) {
			if len(rules[use]) == 0 && len(e.with) == 0 {
				t.Fatal("docs/reference/operations.md lists no rules for it")
			}
			s := newACLServer(t, use == "a Redis Cluster")
			all := slices.Clone(rules[use])
			for _, other := range e.with {
				all = append(all, rules[other]...)
			}
			s.allow(all)
			err := e.run(s)
			if denied := s.denied(); err != nil || denied != "" {
				t.Fatalf("with %s: error %v, denied %s", strings.Join(all, " "), err, denied)
			}
			for i, rule := range rules[use] {
				s.allow(slices.Delete(slices.Clone(all), i, i+1))
				if err := e.run(s); err == nil && s.denied() == "" {
					t.Errorf("%s is listed, but not needed", rule)
				}
			}
		})
	}
}

// aclServer is a Redis server with a user whose rules change.
type aclServer struct {
	t     *testing.T
	addr  string
	admin *redis.Client
	key   string // of the client that is charged; a new one each time
	tries int
}

func newACLServer(t *testing.T, cluster bool) *aclServer {
	var args []string
	if cluster {
		args = []string{"--cluster-enabled", "yes"}
	}
	s := &aclServer{t: t, addr: testserver.Redis(t, args...).Addr}
	s.admin = newClient(t, s.addr)
	if cluster {
		if err := s.admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
			t.Fatal(err)
		}
		for !strings.Contains(s.admin.ClusterInfo(t.Context()).Val(), "cluster_state:ok") {
			if t.Context().Err() != nil {
				t.Fatal("the cluster does not come up")
			}
		}
	}
	return s
}

// allow gives the user only these rules, and flushes the scripts and the ACL log.
func (s *aclServer) allow(rules []string) {
	s.t.Helper()
	args := []any{"acl", "setuser", "weir", "reset", "on", ">secret"}
	for _, rule := range rules {
		args = append(args, rule)
	}
	if err := s.admin.Do(s.t.Context(), args...).Err(); err != nil {
		s.t.Fatalf("%s: %v", strings.Join(rules, " "), err)
	}
	if err := s.admin.ScriptFlush(s.t.Context()).Err(); err != nil {
		s.t.Fatal(err)
	}
	if err := s.admin.Do(s.t.Context(), "acl", "log", "reset").Err(); err != nil {
		s.t.Fatal(err)
	}
	s.tries++
	s.key = fmt.Sprint("alice", s.tries)
}

// denied returns the server's denials since the last allow, even if the client returned no
// error for them.
func (s *aclServer) denied() string {
	s.t.Helper()
	entries, err := s.admin.ACLLog(s.t.Context(), 10).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Reason+" "+e.Object)
	}
	return strings.Join(all, ", ")
}

func (s *aclServer) options() *redis.UniversalOptions {
	o := patient(s.addr)
	o.Username, o.Password = "weir", "secret"
	return o
}

// login returns a client of the user, on new connections.
func (s *aclServer) login() *redis.Client {
	return connect(s.t, s.options()).(*redis.Client)
}

func (s *aclServer) backend(c redis.UniversalClient) *redisbackend.Backend {
	return newBackend(s.t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
}

// aclPolicy has a limit of each algorithm except the log, which needs other commands.
var aclPolicy = policy("all", perHour(50),
	throttler.Limit{Quota: 60, Window: 2 * time.Hour, Aligned: true},
	throttler.Limit{Quota: 50, Window: time.Minute, Algorithm: throttler.SlidingWindow},
	throttler.Limit{Quota: 50, Window: time.Minute, Algorithm: throttler.TokenBucket},
	throttler.Limit{Quota: 50, Window: time.Second, Algorithm: throttler.LeakyBucket})

func (s *aclServer) takes() error { return s.takesFrom(s.backend(s.login())) }

// takesFrom takes, settles and refunds. At first the server does not know the script.
func (s *aclServer) takesFrom(b driver.Backend) error {
	th := throttler.New(b, nil)
	changed := policy("one", throttler.Limit{Quota: 50, Window: 2 * time.Hour})
	for _, p := range []*throttler.Policy{policy("one", perHour(50)), aclPolicy, changed} {
		for cost := range int64(3) { // one unit, one more, and two
			c := p.Charge(s.key)
			c.Cost = cost
			d, err := th.Take(s.t.Context(), c)
			if err != nil {
				return err
			}
			if _, err := th.Settle(s.t.Context(), d, 3); err != nil {
				return err
			}
			if _, err := th.Refund(s.t.Context(), d); err != nil {
				return err
			}
		}
	}
	return nil
}

// logs takes until a log is long.
func (s *aclServer) logs() error {
	clk := clock.NewManual(t0)
	th := throttler.New(s.backend(s.login()), &throttler.Options{Clock: clk})
	p := policy("log", throttler.Limit{Quota: 300, Window: time.Minute, Algorithm: throttler.SlidingLog})
	for range 300 {
		if _, err := th.Take(s.t.Context(), p.Charge(s.key)); err != nil {
			return err
		}
		clk.Advance(time.Millisecond)
	}
	return nil
}

func (s *aclServer) peeks() error {
	_, err := throttler.New(s.backend(s.login()), nil).Peek(s.t.Context(), aclPolicy.Charge(s.key))
	return err
}

func (s *aclServer) load() error {
	return s.backend(s.login()).Load(s.t.Context())
}

func (s *aclServer) checks() error {
	b := s.backend(s.login())
	b.Check()
	if state := b.Servers()[0]; !state.SkewKnown || state.Role == "" {
		return errors.New("the check says nothing")
	}
	return nil
}

func (s *aclServer) cluster() error {
	o := s.options()
	o.IsClusterMode, o.MaxRedirects = true, -1
	return s.takesFrom(s.backend(connect(s.t, o)))
}

// moves moves a count out of Redis and back. Each process has its own view of
// the flag.
func (s *aclServer) moves() error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	memory, inRedis := memorybackend.NewDefault(), s.backend(s.login())
	for i, place := range []string{"redis", "memory", "redis", "redis"} {
		api := isolated.NewAPI()
		if err := api.SetProviderAndWait(ctx, memprovider.NewInMemoryProvider(map[string]memprovider.InMemoryFlag{
			"throttler-backend": {State: memprovider.Enabled, DefaultVariant: place, Variants: map[string]any{place: place}},
		})); err != nil {
			return err
		}
		r, err := rollout.New(map[string]handoff.Store{"memory": memory, "redis": inRedis}, "redis", api.NewClient(), nil)
		if err != nil {
			return err
		}
		th := throttler.New(r, nil)
		d, err := th.Take(ctx, aclPolicy.Charge(s.key))
		if err == nil && d.Limit(0).Used != int64(i+1) {
			err = fmt.Errorf("on %s: used %d, want %d", place, d.Limit(0).Used, i+1)
		}
		if err == nil {
			_, err = th.Settle(ctx, d, 1)
		}
		if err == nil {
			_, err = th.Peek(ctx, aclPolicy.Charge(s.key))
		}
		r.Close()
		if err := errors.Join(err, api.Shutdown(ctx)); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond) // so that the next view is later
	}
	return nil
}
