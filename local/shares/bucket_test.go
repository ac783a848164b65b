package shares

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// model pairs a bucket with the algorithm that it must agree with.
type model struct {
	t      testing.TB
	policy *throttler.Policy
	share  share
	bucket bucket
	state  algorithm.State
	now    int64
	taken  []driver.Decision // as the algorithm returned them
}

const (
	tokenBits  = 22
	maxInstant = 1<<41 - 1 // ms: an unused bucket is full at half of it
)

const year = int64(quota.MaxWindow / time.Millisecond) // and a day

// take takes n tokens at now if the bucket has them. It returns the bucket's state afterwards.
func (b *bucket) take(s *share, n, now int64) (v bucket, ok bool) {
	if v = s.capped(*b, now); n > s.capacity || !s.holds(v, n, now) {
		return v, false
	}
	return b.charge(s, n, now), true
}

func newModel(t testing.TB, quota, window, burst int64) *model {
	l := throttler.Limit{Quota: quota, Window: time.Duration(window) * time.Millisecond, Algorithm: throttler.TokenBucket, Burst: burst}
	p := &throttler.Policy{Name: "model", Limits: []throttler.Limit{l}}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return &model{t: t, policy: p, share: share{quota, window, l.Capacity()}, now: 1 << 40}
}

func (m *model) take(cost int64) {
	charge := m.policy.Charge("k")
	charge.Cost = cost
	want := algorithm.Take(driver.NewRequest(m.now, charge), []*algorithm.State{&m.state})
	v, ok := m.bucket.take(&m.share, cost, m.now)
	if ok != want.Allowed {
		m.t.Fatalf("take of %d at %d: %v, the algorithm says %v", cost, m.now, ok, want.Allowed)
	}
	m.compare("take", v, &want)
	if ok && cost > 0 {
		m.taken = append(m.taken, want)
	} else if at, rest := m.share.hasAt(v, cost); !ok && cost <= m.share.capacity && at+min(rest, 1) != want.Results()[0].RetryAt {
		m.t.Fatalf("take of %d at %d: it fits at %d and %d, the algorithm says %d", cost, m.now, at, rest, want.Results()[0].RetryAt)
	}
}

// settle replaces the cost of take i.
func (m *model) settle(i int, cost int64) {
	d := m.taken[i%len(m.taken)]
	was, mark := d.Charges()[0].Cost, d.Results()[0].Mark
	want := algorithm.Settle(driver.Settlement{Now: m.now, Charged: d, Costs: []int64{cost}}, []*algorithm.State{&m.state})
	v := m.share.capped(m.bucket, m.now)
	if cost > was {
		v = m.bucket.charge(&m.share, cost-was, m.now)
	} else if cost < was {
		m.bucket.giveBack(&m.share, was-cost, mark.At, mark.Fraction, m.now)
		v = m.bucket
	}
	m.compare("settle", v, &want)
}

func (m *model) compare(what string, v bucket, want *driver.Decision) {
	r := want.Results()[0]
	if used := m.share.capacity - m.share.wholeUnits(v, m.now); used != r.Used {
		m.t.Fatalf("%s at %d: %d are used, the algorithm says %d", what, m.now, used, r.Used)
	}
	at, rest := m.share.hasAt(v, m.share.capacity)
	if at+min(rest, 1) != r.ResetAt {
		m.t.Fatalf("%s at %d: full at %d and %d, the algorithm says %d", what, m.now, at, rest, r.ResetAt)
	}
	if what == "take" && want.Allowed && want.Charges()[0].Cost > 0 && (r.Mark.At != at || r.Mark.Fraction != rest) {
		m.t.Fatalf("take at %d: the mark is %d and %d, the algorithm says %d and %d", m.now, at, rest, r.Mark.At, r.Mark.Fraction)
	}
}

// A bucket agrees with package algorithm to the last unit and millisecond, for any fraction in
// the rate.
func TestBucketIsTheAlgorithm(t *testing.T) {
	random := testseed.Rand(t, 0)
	for range 300 {
		quota := 1 + random.Int64N(1<<random.IntN(tokenBits))
		window := 1 + random.Int64N(1<<random.IntN(30))
		burst := 1 + random.Int64N(1<<random.IntN(tokenBits))
		if burst*window/quota > 1<<34 {
			continue
		}
		m := newModel(t, quota, window, burst)
		most := min(burst, 1<<random.IntN(tokenBits))
		for range 300 {
			m.now += random.Int64N(max(2*most*window/quota, 2))
			if m.now > maxInstant-year {
				break
			}
			m.take(random.Int64N(most + 2))
		}
	}
}

// Settlements agree, too, if the rate has no fractions: a refund returns the units that have
// not yet refilled, to the millisecond.
func TestBucketSettlesAsTheAlgorithm(t *testing.T) {
	random := testseed.Rand(t, 0)
	for range 300 {
		quota := 1 + random.Int64N(1000)
		m := newModel(t, quota, quota*(1+random.Int64N(1000)), 1+random.Int64N(2000))
		token, capacity := m.share.window/m.share.units, m.share.capacity
		for range 300 {
			m.now += random.Int64N(1 + capacity*token/8)
			if random.IntN(3) > 0 {
				m.take(random.Int64N(capacity + 2))
			} else if len(m.taken) > 0 {
				m.settle(random.Int(), random.Int64N(2*capacity))
			}
		}
	}
}

// Takes each millisecond for ten minutes, at 333 1/3 ms a token and other odd rates, admit the
// burst and the tokens of the rate, to the token.
func TestBucketLosesNoFraction(t *testing.T) {
	const length = 600_000
	for _, c := range []struct{ quota, window int64 }{{3, 1000}, {7, 1000}, {999, 10_007}, {maxTokens, 10_000_019}, {1, 3600_000}} {
		s, admitted := share{c.quota, c.window, 5}, int64(0)
		var b bucket
		for now := range int64(length + 1) {
			for {
				if _, ok := b.take(&s, 1, maxInstant/2+now); !ok {
					break
				}
				admitted++
			}
		}
		if want := 5 + length*c.quota/c.window; admitted != want && c.quota < 5*c.window {
			t.Errorf("%d per %d ms: %d were admitted; want %d", c.quota, c.window, admitted, want)
		}
	}
}

// A share that changes ten times a second, up and down, creates no tokens and loses almost
// none: takes admit the first capacity and the tokens of the rates.
func TestBucketChangesShare(t *testing.T) {
	random := testseed.Rand(t, 0)
	for range 20 {
		const window = 10_000
		s := share{100, window, 100}
		var b bucket
		var admitted, gave int64 // gave in 1/window of a token
		for now := int64(maxInstant / 2); now < maxInstant/2+100_000; now++ {
			if random.IntN(4) == 0 || now == maxInstant/2 {
				for {
					if _, ok := b.take(&s, 1, now); !ok {
						break
					}
					admitted++
				}
			}
			gave += s.units
			if random.IntN(100) > 0 {
				continue
			}
			units := 1 + random.Int64N(300)
			next := share{units, window, units}
			before := s.wholeUnits(s.capped(b, now), now)
			b.move(&s, &next, now)
			after := next.wholeUnits(next.capped(b, now), now)
			if after > before {
				t.Fatalf("at %d: %d tokens became %d when %d units became %d", now, before, after, s.units, units)
			}
			s = next
		}
		most := 100 + gave/window
		if admitted > most || admitted < most*98/100 {
			t.Errorf("%d were admitted; want at most %d, and not much less", admitted, most)
		}
	}
}

// A debt of any size is kept, and takes fail until it is paid.
func TestBucketDebt(t *testing.T) {
	const start = maxInstant / 2
	s := share{1000, 1000, 1000}
	var b bucket
	b.charge(&s, 61_000, start) // the first 1,000, and a minute's debt
	if _, ok := b.take(&s, 1, start+60_000); ok {
		t.Error("a take fits while the debt is not paid")
	}
	if _, ok := b.take(&s, 1, start+60_001); !ok {
		t.Error("a take does not fit when the debt is paid")
	}
	b.charge(&s, quota.MaxQuota, start+60_001)
	if _, ok := b.take(&s, 1, maxInstant-1); ok {
		t.Error("a debt of 285 years is paid in 35")
	}
}

// Goroutines that take at the same time get each token once.
func TestTakesAtOnce(t *testing.T) {
	g, b := one(t, tokens("core", 1000, time.Second, 50_000), Options{})
	start := g.clock.Now().UnixMilli()
	var admitted, returned atomic.Int64
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			r := g.request(1, "alice")
			for i := range int64(20_000) {
				r.Now = start + i/2
				d, err := b.Take(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				if !d.Allowed {
					continue
				}
				admitted.Add(1)
				if n == 0 && i%16 == 0 {
					if _, err := b.Settle(t.Context(), driver.Settlement{Now: r.Now, Charged: d, Costs: []int64{0}}); err != nil {
						t.Error(err)
					}
					returned.Add(1)
				}
			}
		})
	}
	all.Wait()
	// Full at the start, and 1 a ms for 10 s.
	if most := 60_000 + returned.Load(); admitted.Load() > most || admitted.Load() < most-16 {
		t.Errorf("%d were admitted; want %d", admitted.Load(), most)
	}
}

// FuzzBucket compares a bucket with the algorithm for any history of takes.
func FuzzBucket(f *testing.F) {
	f.Add(int64(3), int64(1000), int64(5), []byte("0123456789abcdef"))
	f.Add(int64(maxTokens), int64(1), int64(maxTokens), []byte{0, 0, 255, 255, 1, 0, 255, 255})
	f.Add(int64(1), int64(366*24*3600_000), int64(1), []byte{255, 255, 0, 1, 255, 255, 0, 1})
	f.Fuzz(func(t *testing.T, quota, window, burst int64, history []byte) {
		if quota < 1 || quota > maxTokens || window < 1 || window > 366*24*3600_000 || burst < 1 || burst > maxTokens {
			return // not a limit that New accepts
		}
		if float64(burst)*float64(window)/float64(quota) > 366*24*3600_000 {
			return // not a limit that New accepts
		}
		m := newModel(t, quota, window, burst)
		for ; len(history) >= 4; history = history[4:] {
			wait, cost := binary.LittleEndian.Uint16(history), binary.LittleEndian.Uint16(history[2:])
			m.now += int64(wait) * (1 + window/(1+quota)/16)
			if m.now > maxInstant-year {
				return
			}
			m.take(int64(cost) * (1 + burst/(1<<15)))
		}
	})
}
