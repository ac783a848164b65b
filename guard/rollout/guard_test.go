package rollout_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/breaker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newBreaker(t testing.TB, probe func(context.Context) error) *breaker.Breaker {
	b := breaker.New(probe, nil)
	t.Cleanup(b.Close)
	return b
}

// guarded makes a call of a shard, as a backend does: not while its breaker is open.
func guarded[T any](ctx context.Context, b *breaker.Breaker, call func() (T, error)) (T, error) {
	if b.Open() {
		var none T
		return none, breaker.ErrOpen
	}
	began := time.Now()
	answer, err := call()
	switch away := (*handoff.ElsewhereError)(nil); {
	case errors.Is(ctx.Err(), context.Canceled):
	case errors.As(err, &away):
		b.Record(began, nil)
	default:
		b.Record(began, err)
	}
	return answer, err
}
