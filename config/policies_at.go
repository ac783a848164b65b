package config

import (
	"context"

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

// openPolicies makes the table watch the server of policies_at.
func (s *Stack) openPolicies(ctx context.Context) error {
	c := s.Config
	at := (*server)(c.keys.PoliciesAt)
	if at == nil {
		return nil
	}
	o := at.options
	o.CredentialsProvider = at.credentials()
	client, err := s.newClient(o)
	if err != nil || s.offline {
		return err
	}
	watch := redispolicies.NewWatch(ctx, c.options.Table, "redis", redispolicies.NewStore(client, c.prefixed(redispolicies.DefaultPrefix)), &redispolicies.Options{Observer: c.options.Observer})
	s.onClose(watch.Close)
	return nil
}
