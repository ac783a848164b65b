package config

import (
	"context"

	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v4"

	redispolicies "github.com/weir-go/weir/policies/redis"
)

// policiesAt are the servers that keep policies and overrides for all processes. The word
// roots is short for the roots, if they are one group.
type policiesAt struct {
	Roots   bool
	Servers roots `is:"a list of Redis servers, such as [127.0.0.1:6379]"`
}

func (*policiesAt) long(node *yaml.Node) *yaml.Node {
	switch {
	case node.Kind == yaml.ScalarNode && node.Value == "roots":
		return under("roots", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true", Line: node.Line})
	case node.Kind == yaml.SequenceNode:
		return under("servers", node)
	}
	return node
}

// policiesAt checks the key policies_at, and sets its servers.
func (c *Config) policiesAt(r *reader) {
	at := &c.keys.PoliciesAt
	switch {
	case !r.at("policies_at").has():
		return
	case c.options.Table == nil:
		r.problem(r.at("policies_at"), "policies_at is set, but the program has no table of policies; remove it")
	case at.Roots && len(c.keys.Roots) == 0:
		r.problem(r.at("policies_at"), "policies_at is roots, but roots is not set; set it, such as roots: [127.0.0.1:6379]")
	case at.Roots:
		for _, one := range c.keys.Roots {
			if one.Group != c.keys.Roots[0].Group {
				r.problem(r.at("policies_at"), "policies_at is roots, which are several groups; write a list of the servers that are to have policies, such as those of one group")
				return
			}
		}
		at.Servers = c.keys.Roots
	case len(at.Servers) == 0:
		r.mustBe(r.at("policies_at"), "roots, or a list of Redis servers, such as [127.0.0.1:6379]")
	}
}

// openPolicies makes the table watch the servers of policies_at.
func (s *Stack) openPolicies(ctx context.Context) error {
	c := s.Config
	var clients []redis.UniversalClient
	for _, one := range c.keys.PoliciesAt.Servers {
		o := one.options
		o.CredentialsProvider = one.credentials()
		client, err := s.newClient(o)
		if err != nil {
			return err
		}
		clients = append(clients, client)
	}
	if len(clients) == 0 || s.offline {
		return nil
	}
	watch := redispolicies.NewWatch(ctx, c.options.Table, "redis", redispolicies.NewRoots(clients, ""), &redispolicies.Options{Observer: c.options.Observer})
	s.onClose(watch.Close)
	return nil
}
