package synced

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

// hostile is a root that replies the same to every call.
type hostile struct{ reply []byte }

func (hostile) name() string      { return "hostile" }
func (hostile) groupName() string { return "" }

func (h hostile) call(_ context.Context, calls []call) ([][]byte, error) {
	replies := make([][]byte, len(calls))
	for i := range replies {
		replies[i] = h.reply
	}
	return replies, nil
}

// Whatever a root replies, answers make sense: used units are never negative, and windows are
// always the clock's.
func FuzzReplies(f *testing.F) {
	doubles := func(items ...float64) []byte {
		b := []byte{'o'}
		for _, x := range items {
			b = binary.BigEndian.AppendUint64(b, math.Float64bits(x))
		}
		return b
	}
	for _, x := range []float64{0, -1, 1e18, -1e18, math.Inf(1), math.NaN(), math.MaxFloat64, 5e-324} {
		f.Add(doubles(x, x, 3, x), doubles(x, 0, x, 7))
	}
	f.Add([]byte("u"), []byte("o\xff\xff\xff\xff"))
	f.Add([]byte("o"), []byte("u\x00"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{
			{Quota: 9, Window: time.Hour, Aligned: true}, {Quota: 5, Window: time.Minute, Algorithm: throttler.TokenBucket},
		}}
		c := clock.NewManual(t0)
		o := Options{Clock: c}
		if err := o.complete(); err != nil {
			t.Fatal(err)
		}
		root := &hostile{}
		b := newBackend([]server{root}, &o)
		th := throttler.New(b, &throttler.Options{Clock: c})
		for _, root.reply = range [][]byte{first, second, second} {
			b.syncOnce(t.Context(), b.aggregators[0])
			c.Advance(time.Second)
			d, err := th.Take(t.Context(), p.Charge("alice"))
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range d.Limits() {
				if s.Used < 0 || s.Remaining < 0 || s.Remaining > s.Limit.Capacity() || s.ResetAt.Before(d.At()) || s.Refused && s.RetryAt.Before(d.At()) {
					t.Errorf("after %q and %q, limit %d: %+v", first, second, i, s)
				}
				if reset := s.ResetAt.Sub(t0.Truncate(time.Hour)); i == 0 && reset != time.Hour {
					t.Errorf("after %q and %q the window ends at %v", first, second, s.ResetAt)
				}
			}
		}
	})
}
