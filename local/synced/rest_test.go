package synced

import (
	"flag"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

var atRest = flag.Int("at-rest", 20_000, "the counters of TestSequentialCostAtRest")

// processorTime returns the CPU time that this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// A process at rest costs the same with many counters as without any: a sync has as many bytes, and
// a sweep looks at one stripe. Counters that have ended go nevertheless.
func TestSequentialCostAtRest(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: 1000 * time.Hour, Aligned: true}}}
	for _, counters := range []int{0, *atRest} {
		addr := testserver.Redis(t).Addr
		servers, err := dial([]Root{{Name: "root", Client: redisClient(t, addr)}}, "weir-sync:", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		f := newFleet(t, 0, 1, Options{Sync: time.Second, MaxKeys: 2 << 20})
		o := f.options
		before := inUse()
		b := newBackend(servers, &o)
		th := throttler.New(b, &throttler.Options{Clock: f.clock})
		for i := range counters {
			if _, err := th.Take(t.Context(), policy.Charge("client-"+strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
		second := func() (looked int) {
			b.syncOnce(t.Context(), b.aggregators[0])
			f.advance(f.elapsed + time.Second)
			return b.sweep()
		}
		for range 30 {
			second()
		}
		each := float64(inUse()-before) / float64(max(counters, 1))
		info := infoOf(t, addr)
		server, host := info(), processorTime(t)
		const seconds = keyed.Stripes
		looked := 0
		for range seconds {
			looked += second()
		}
		host = processorTime(t) - host
		end := info()
		of := func(name string) float64 { return (end[name] - server[name]) / seconds }
		t.Logf("%d counters, %.0f bytes each: a second has %.0f bytes to the root, %v of CPU time here, with %d counters swept, and %.0f µs there",
			counters, each, of("total_net_input_bytes"), (host / seconds).Round(time.Microsecond), looked/seconds, 1e6*(of("used_cpu_user")+of("used_cpu_sys")))
		if n := of("total_net_input_bytes"); n > 200 {
			t.Errorf("with %d counters at rest, a sync has %.0f bytes", counters, n)
		}
		if looked != counters {
			t.Errorf("%d sweeps at rest looked at %d counters, want each of %d once", seconds, looked, counters)
		}
		if counters > 0 && each > 520 {
			t.Errorf("a counter takes %.0f bytes, want at most 520", each)
		}
		f.advance(f.elapsed + 2000*time.Hour)
		for range seconds {
			second()
		}
		if n := b.Stats().Keys; n > 0 {
			t.Errorf("%d counters that have ended are left", n)
		}
	}
}
