package redispolicies

import (
	"context"
	"time"
)

// SetMaxLog makes n the most entries of the log.
func (s *Store) SetMaxLog(n int) { s.maxLog = n }

// SetAskTimeout bounds the wait for the version of a root.
func (s *Store) SetAskTimeout(d time.Duration) { s.askTimeout = d }

// WriteText makes text the limits of a policy, whether they are any: as by hand.
func (s *Store) WriteText(ctx context.Context, policy, text string) (int64, error) {
	return s.write(ctx, []any{"p", policy, text, ""})
}
