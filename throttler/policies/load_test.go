package policies_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// While a file is replaced, and half of its versions are wrong, each decision goes by one good
// version, no later decision by an earlier version, and no charge is lost.
func TestAFileThatIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	random, c := testseed.Rand(t, 0), clock.NewManual(t0)
	text := func(n int64) string {
		return fmt.Sprintf(`{"policies": [{"name": "core", "limits": ["%d per 1h"]}, {"name": "search", "limits": ["%d per 1h"]}]}`, n, n)
	}
	const first = 1 << 40 // more than all takes, however long the test runs
	var table policies.Table
	path, f := watch(t, &table, text(first), new(warnings))
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c, Policies: &table})

	var good sync.Map // quotas that a good version has had
	good.Store(int64(first), true)
	var taken atomic.Int64
	done := make(chan struct{})
	var takers sync.WaitGroup
	for range 4 {
		takers.Go(func() {
			lastQuota, lastUsed := int64(0), int64(0)
			for {
				select {
				case <-done:
					return
				default:
				}
				d, err := th.Take(t.Context(), policy("core", hourly(1)).Charge("k"), policy("search", hourly(1)).Charge("k"))
				if err != nil || !d.Allowed || d.NumLimits() != 2 {
					t.Errorf("%v, %v; no version explains it", d, err)
					return
				}
				taken.Add(1)
				a, b := d.Limit(0), d.Limit(1)
				if _, ok := good.Load(a.Limit.Quota); !ok || a.Limit.Quota != b.Limit.Quota || a.Limit.Quota < lastQuota || a.Used <= lastUsed {
					t.Errorf("%v after quota %d, used %d; want one good version, and no fresh window", d, lastQuota, lastUsed)
					return
				}
				lastQuota, lastUsed = a.Limit.Quota, a.Used
			}
		})
	}
	for taken.Load() == 0 && !t.Failed() {
		runtime.Gosched()
	}
	for n := int64(1); n <= 300; n++ {
		if next := text(first + n); random.IntN(2) == 0 {
			write(t, path, next[:random.IntN(len(next))])
			_ = f.Refresh() // an error
		} else {
			good.Store(first+n, true)
			write(t, path, next)
			if err := f.Refresh(); err != nil {
				t.Error(err)
			}
		}
		runtime.Gosched()
	}
	close(done)
	takers.Wait()
	d, err := th.Peek(t.Context(), throttler.Charge{Policy: policy("core", hourly(1)), Key: "k"})
	if err != nil || d.Limit(0).Used != taken.Load() || taken.Load() == 0 {
		t.Errorf("%v, %v after %d takes", d, err, taken.Load())
	}
}
