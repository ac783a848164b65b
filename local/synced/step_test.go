package synced

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/throttler"
)

// A load that steps from half of a quota to three times it is admitted as the quota within ten
// syncs: then any five seconds are within 5 percent of it, and single seconds differ by at most 1.5
// times what random requests do. The processes' syncs come at different times.
func TestSequentialStep(t *testing.T) {
	const quota, before, settled, end = 1000, 10, 15, 45 // the step is at second 10
	drawn := figure.Figure{
		Title:    "A step from 0.5 to 3 times a quota of 1,000 a second",
		Subtitle: "Requests admitted a second, simulated; burst 4,000, sync 500 ms, Low 0.3",
		Columns:  1, PanelHeight: 190,
	}
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 4 * quota}}}
	for _, processes := range []int{50, 300} {
		f := newFleetOf(t, 1, processes, 1, Options{Sync: 500 * time.Millisecond, Low: 0.3})
		even := f.loads()["even"]
		each := f.offer(0.5*quota, before*time.Second, time.Second, policy.Charge("alice"), even)
		each = append(each, f.offer(3*quota, end*time.Second, time.Second, policy.Charge("alice"), even)...)
		var squares, farthest float64
		for i := settled; i < end; i++ {
			squares += math.Pow(float64(each[i]-quota), 2)
			if i+5 <= end {
				farthest = max(farthest, math.Abs(float64(sum(each[i:i+5]))/(5*quota)-1))
			}
		}
		spread := math.Sqrt(squares/(end-settled)) / math.Sqrt(quota)
		t.Logf("%d processes: from the fifth second on, 5 s are at most %.1f %% off, and the spread of seconds is %.2f times that of random requests; %v",
			processes, 100*farthest, spread, each)
		if farthest > 0.05 || spread > 1.5 {
			t.Errorf("%d processes: 5 s are %.1f %% off the quota, and the spread of seconds is %.2f times that of random requests; want at most 5 and 1.5", processes, 100*farthest, spread)
		}
		drawn.Panels = append(drawn.Panels, figure.Panel{
			Title:  fmt.Sprintf("%d processes", processes),
			Note:   "500 requests a second, and 3,000 from 10 s on",
			Series: []figure.Series{bySecond(each, time.Second)},
			Spans:  []figure.Span{{Name: "ten syncs", From: before, To: settled}},
		})
	}
	write(t, "step", drawn)
}

// More than the quota is admitted without a saw-tooth, also with a capacity of three syncs only.
func TestSequentialNoSawTooth(t *testing.T) {
	const quota = 100
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 3 * quota}}}
	for _, c := range []struct {
		low       float64
		processes int
		times     float64 // the quota
		most      float64 // times the spread of random requests
	}{{0.5, 50, 3, 2}, {0.5, 300, 3, 2}, {1, 6, 2, 1}, {1, 12, 2, 1}} {
		f := newFleetOf(t, 1, c.processes, 1, Options{Sync: time.Second, Low: c.low})
		f.rate(c.times*quota, 30, policy.Charge("alice"))
		each := f.offer(c.times*quota, f.elapsed+time.Minute, time.Second, policy.Charge("alice"), f.loads()["even"])
		var squares float64
		for _, n := range each {
			squares += math.Pow(float64(n-quota), 2)
		}
		spread := math.Sqrt(squares / float64(len(each)) / quota)
		t.Logf("Low %v, %d processes: the spread of seconds is %.2f times that of random requests; %v", c.low, c.processes, spread, each)
		if spread > c.most {
			t.Errorf("Low %v, %d processes: the spread of seconds is %.2f times that of random requests; want at most %v", c.low, c.processes, spread, c.most)
		}
	}
}
