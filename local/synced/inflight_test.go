package synced

import (
	"context"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// meanwhile is a root that calls do between its first reply and the reply's arrival.
type meanwhile struct {
	server
	do func()
}

func (m *meanwhile) call(ctx context.Context, calls []call) ([][]byte, error) {
	replies, err := m.server.call(ctx, calls)
	if do := m.do; do != nil {
		m.do = nil
		do()
	}
	return replies, err
}

// Units taken while a reply without them is on its way count: also in a bucket that was empty,
// which the root cannot know, and in a window.
func TestTakesWhileAReplyIsOnItsWay(t *testing.T) {
	for _, limit := range []throttler.Limit{
		{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.TokenBucket},
		{Quota: 10, Window: 10 * time.Second, Aligned: true},
	} {
		t.Run(limit.String(), func(t *testing.T) {
			policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{limit}}
			f := newFleet(t, 2, 1, Options{})
			take := func(p *process, cost int64) throttler.Decision {
				t.Helper()
				charge := policy.Charge("alice")
				charge.Cost = cost
				d, err := p.throttler.Take(t.Context(), charge)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			first, second := f.processes[0], f.processes[1]
			take(first, 1)
			f.advance(time.Minute) // the root has heard of the unit, and it has drained
			_, _ = first.throttler.Peek(t.Context(), policy.Charge("alice"))
			root := first.backend.aggregators[0]
			root.server = &meanwhile{root.server, func() { take(first, 10) }}
			f.advance(f.elapsed + 2*DefaultSync)
			if d := take(first, 1); d.Allowed {
				t.Errorf("after 10 of 10, which came while a reply was on its way: %v", &d)
			}
			take(second, 11) // is refused, and the second process learns of the key
			f.advance(f.elapsed + 3*DefaultSync)
			if d := take(second, 2); d.Allowed {
				t.Errorf("at another process: %v", &d)
			}
		})
	}
}
