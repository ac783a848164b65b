package shares

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/backendtest"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// alone is a Backend that holds all quotas in full. It learns policies of token buckets when it
// first sees them. Other charges go to memory, for the suite.
type alone struct {
	learning sync.RWMutex
	*Backend
	memory *memorybackend.Backend
	asked  int // decisions by the Backend
}

func newAlone(t testing.TB, o *Options) *alone {
	t.Helper()
	first := tokens("first", 1, time.Second, 0)
	b, err := newBackend("alone", 1, []*throttler.Policy{first}, o)
	if err != nil {
		t.Fatal(err)
	}
	b.hold(1)
	return &alone{Backend: b, memory: memorybackend.NewDefault()}
}

func tokens(name string, quota int64, window time.Duration, burst int64) *throttler.Policy {
	return &throttler.Policy{Name: name, Limits: []throttler.Limit{{Quota: quota, Window: window, Algorithm: throttler.TokenBucket, Burst: burst}}}
}

// hold gives b the share 1/of of all quotas.
func (b *Backend) hold(of int64) {
	given := division.Shares{Valid: true, First: true}
	for _, p := range b.policies {
		given.Quotas = append(given.Quotas, p.part(of)...)
	}
	b.apply(given)
}

func (p *policy) part(of int64) (all []division.Share) {
	for i := range p.Limits {
		all = append(all, division.Share{Units: p.Limits[i].Quota / of})
	}
	return all
}

// backendFor returns the backend that decides about charges, and a function to call afterwards.
func (a *alone) backendFor(charges []throttler.Charge) (driver.Backend, func()) {
	if !a.learn(charges) {
		return a.memory, func() {}
	}
	a.learning.RLock()
	return a.Backend, a.learning.RUnlock
}

func (a *alone) learn(charges []throttler.Charge) bool {
	a.learning.Lock()
	defer a.learning.Unlock()
	for i := range charges {
		given := charges[i].Policy
		if was := a.byName[given.Name]; was != nil && was.Policy == given {
			continue
		}
		byName, order, err := newPolicies([]*throttler.Policy{given}, 1, time.Second)
		if err != nil {
			return false
		}
		order[0].apply(order[0].part(1), true, 0)
		a.byName[given.Name] = byName[given.Name]
	}
	a.asked++
	return true
}

func (a *alone) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	b, done := a.backendFor(r.Charges())
	defer done()
	return b.Take(ctx, r)
}

func (a *alone) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	b, done := a.backendFor(r.Charges())
	defer done()
	return b.Peek(ctx, r)
}

func (a *alone) Settle(ctx context.Context, r driver.Settlement) (driver.Decision, error) {
	b, done := a.backendFor(r.Charged.Charges())
	defer done()
	return b.Settle(ctx, r)
}

func (a *alone) Reset(ctx context.Context, r driver.Request) error {
	b, done := a.backendFor(r.Charges())
	defer done()
	return b.Reset(ctx, r)
}

func (a *alone) HasReceipt(d *driver.Decision) error {
	b, done := a.backendFor(d.Charges())
	defer done()
	return driver.HasReceipt(b, d)
}

func TestBackend(t *testing.T) {
	asked := 0
	const (
		halves  = "half of its charges went to memory"
		changes = "policies are given once"
		parts   = "no process can forget the part of another"
	)
	backendtest.RunExcept(t, func(t *testing.T) driver.Backend {
		a := newAlone(t, nil)
		t.Cleanup(func() { asked += a.asked })
		return a
	}, map[string]string{
		"pauses/a pause, token-bucket":                                                                                         "other processes have shares of their own",
		"waits/what is behind a charge that waits stays, also if it is more":                                                   "a share is not charged ahead",
		"waits/places of calls that leave, token-bucket":                                                                       "a share is not charged ahead, and a larger burst is another policy",
		"chains/all live within the partition of the first":                                                                    halves,
		"chains/one key under two policies in one take":                                                                        halves,
		"receipts/token-bucket: each receipt is settled once, also delivered twice, late, cut, and out of order":               halves,
		"receipts/token-bucket: a receipt that is settled stays settled to its end, whichever process tries, by its own clock": halves,
		"clocks/clocks from 1970 to 9999":                                                                                      parts,
		"resets/token-bucket: the next charge finds nothing":                                                                   parts,
		"resets/token-bucket: a refund of an earlier charge does nothing, within the same millisecond too":                     parts,
		"changed policies/another quota of a token bucket: its units stay":                                                     changes,
		"changed policies/a lower rate of a token bucket with a burst hands out nothing":                                       changes,
		"changed policies/a token bucket of two quotas has room for what drains at the higher one":                             changes,
		"changed policies/a token bucket made slower is full when it was to be, unless it is charged":                          changes,
		"changed policies/a token bucket that is full within a part of a millisecond counts all that fills it":                 changes,
		"changed policies/of two windows that are nearly as near the nearer one continues":                                     changes,
		"changed policies/a token bucket made faster fills faster since its last charge":                                       changes,
		"changed policies/another algorithm starts empty, and its charges count for the old one too":                           changes,
	})
	if asked < 700 {
		t.Errorf("%d decisions were about shares; want the suite's about token buckets", asked)
	}
}

// A key takes the same memory whatever its length: MaxKeys bounds bytes too.
func TestLongKeysAreNotKept(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Minute, Algorithm: throttler.TokenBucket}}}
	g := newGroup(t, policy, 1, Options{})
	g.divide([]division.Share{{Units: 100}})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range 500 {
		g.take(0, fmt.Sprint(strings.Repeat("k", 64<<10), i), 1)
	}
	if grown := heap() - before; grown > 2<<20 {
		t.Errorf("500 keys of 64 KiB take %d KiB", grown>>10)
	}
	runtime.KeepAlive(g)
}
