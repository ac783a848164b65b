package config

import (
	"context"
	"strings"

	"go.yaml.in/yaml/v4"

	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

// policiesAt is the server from which this process reads policies and overrides. The short
// form is its address or URL.
type policiesAt server

func (s *policiesAt) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return load(node, &s.Primary)
	}
	return load(node, (*server)(s))
}

// policiesServer returns the server that the table watches, or nil.
func (c *Config) policiesServer() *server {
	shards := c.keys.Redis.Shards
	switch {
	case c.keys.PoliciesAt != nil:
		return (*server)(c.keys.PoliciesAt)
	case c.options.CountsHavePolicies && c.Backend == "redis" && len(shards) == 1:
		return &shards[0].server
	}
	return nil
}

// HasPoliciesAt reports whether the file has policies_at.
func (c *Config) HasPoliciesAt() bool { return c.keys.PoliciesAt != nil }

// PoliciesAt returns the server from which the table reads policies and overrides, in words, or
// "" if it reads none.
func (c *Config) PoliciesAt() string {
	server := c.policiesServer()
	if server == nil {
		return ""
	}
	return strings.Join(server.options.Addrs, ", ")
}

// OpenPolicies opens the policies and overrides that the table reads, for a program that reads or
// changes them. It returns nil if the table reads none. The caller must call close.
func (c *Config) OpenPolicies() (store *redispolicies.Store, close func() error, err error) {
	server := c.policiesServer()
	if server == nil {
		return nil, nil, nil
	}
	s := &Stack{Config: c}
	client, err := s.connect(server)
	if err != nil {
		return nil, nil, err
	}
	return redispolicies.NewStore(client, c.prefixed(redispolicies.DefaultPrefix)), s.Close, nil
}

// openPolicies makes the table watch the server of policies_at.
func (s *Stack) openPolicies(ctx context.Context) error {
	c := s.Config
	server := c.policiesServer()
	if server == nil {
		return nil
	}
	client, err := s.connect(server)
	if err != nil || s.offline {
		return err
	}
	s.policies = redispolicies.NewWatch(ctx, c.options.Table, "redis", redispolicies.NewStore(client, c.prefixed(redispolicies.DefaultPrefix)), &redispolicies.Options{Observer: c.options.Observer})
	s.onClose(s.policies.Close)
	return nil
}

// RefreshPolicies puts changes at the server of policies_at in force now, and not with the next check.
// It does nothing if the table reads no server. The error says why the last version is not in force.
func (s *Stack) RefreshPolicies(ctx context.Context) error {
	if s.policies == nil {
		return nil
	}
	return s.policies.Refresh(ctx)
}
