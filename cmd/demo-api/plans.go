package main

import (
	"context"
	"fmt"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/throttler/policies"
)

// plans puts into table which policy of c replaces core for a caller, by the plan of its
// token. A caller that gets another plan keeps its used units. Members of shares divide the
// limits that exist at the start, so with shares no policy replaces core.
func (s *settings) plans(table *policies.Table, c *config.Config) error {
	planOf := make(map[string]string)
	for text, token := range s.Tokens {
		if token.Plan == "" || c.Backend == "shares" && c.Policies[token.Plan] != nil {
			continue
		}
		if subject, ok := s.Tokens.subject(string(text)); ok {
			key, err := s.user().For(subject)
			if err != nil {
				return err
			}
			planOf[key] = token.Plan
		}
	}
	if len(planOf) == 0 {
		return nil
	}
	return table.Source("tokens").Edit(func(e *policies.Edit) {
		e.Plan(corePolicy, func(_ context.Context, key string) string { return planOf[key] })
		for _, plan := range planOf {
			if p := c.Policies[plan]; p != nil {
				e.Set(p)
			}
		}
	})
}

// wrongPlan returns an error if a token's plan is not a policy of c.
func (s *settings) wrongPlan(c *config.Config) error {
	for _, token := range s.Tokens {
		if p := token.Plan; p != "" && p != policies.Unlimited && p != policies.Blocked && c.Policies[p] == nil {
			return fmt.Errorf("a token's plan is %q; it must be the name of a policy, such as %s, or %q or %q", p, proPolicy, policies.Unlimited, policies.Blocked)
		}
	}
	return nil
}
