package redispolicies

import (
	"context"

	"github.com/weir-go/weir/throttler/policies"
)

// SetMaxLog sets the maximum number of members of the log.
func (s *Store) SetMaxLog(n int) { s.maxLog = n }

// WriteText writes text as the limits of a policy, valid or not, like an edit by hand.
func (s *Store) WriteText(ctx context.Context, policy, text string) (int64, error) {
	return s.write(ctx, []any{"p", policy, text, ""})
}

// Find is the source's Find.
func (w *Watch) Find(ctx context.Context, policy, key string) (*policies.Override, bool, error) {
	return w.find(ctx, policy, key)
}
