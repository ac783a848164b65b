package backendtest

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func settlementCases() []testCase {
	const s = time.Second
	var (
		fixed   = charging(tenPer10s[0])
		sliding = charging(tenPer10s[2])
		log     = charging(tenPer10s[3])
		token   = charging(tenPer10s[4])
		leaky   = charging(tenPer10s[5])
		orgs    = named("orgs", throttler.Limit{Quota: 20, Window: 60 * s}, throttler.Limit{Quota: 10, Window: 20 * s})
		largest = charging(throttler.Limit{Quota: quota.MaxQuota, Window: 10 * s})
	)
	return []testCase{
		{
			name:        "lower gives the rest back",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: fixed(8), as: "a", want: room(8, 2, 10*s)},
				{at: s, settle: "a", costs: []int64{3}, want: room(3, 7, 10*s)},
				{at: s, peek: fixed(7), want: room(3, 7, 10*s)},
			},
		},
		{
			name:        "lower, after the window, does nothing to the next",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: fixed(8), as: "a", want: room(8, 2, 10*s)},
				{at: 10 * s, take: fixed(5), want: room(5, 5, 20*s)},
				{at: 11 * s, settle: "a", costs: []int64{3}, want: room(5, 5, 20*s)},
			},
		},
		{
			name:        "equal changes nothing",
			explanation: giveBackOnce,
			steps: []step{
				{at: 0, take: fixed(8), as: "a", want: room(8, 2, 10*s)},
				{at: s, settle: "a", costs: []int64{8}},
				{at: s, peek: fixed(0), want: room(8, 2, 10*s)},
			},
		},
		{
			name:        "once",
			explanation: giveBackOnce,
			steps: []step{
				{at: 0, take: fixed(2), as: "a", want: room(2, 8, 10*s)},
				{at: s, settle: "a", costs: []int64{5}, want: room(5, 5, 10*s)},
				{at: s, settle: "a", costs: []int64{7}},
				{at: s, refund: "a"},
				{at: s, peek: fixed(0), want: room(5, 5, 10*s)},
			},
		},
		{
			name:        "higher is charged at the settlement's instant",
			explanation: settleCharges,
			steps: []step{
				{at: 0, take: fixed(5), as: "a", want: room(5, 5, 10*s)},
				{at: 12 * s, settle: "a", costs: []int64{8}, want: room(3, 7, 22*s)},
				{at: 21999 * time.Millisecond, peek: fixed(0), want: room(3, 7, 22*s)},
				{at: 22 * s, peek: fixed(0), want: room(0, 10, 22*s)},
			},
		},
		{
			name:        "a sliding window's higher cost is charged at the settlement's instant",
			explanation: settleCharges,
			steps: []step{
				{at: 0, take: sliding(5), as: "a", want: room(5, 5, 19750*time.Millisecond)},
				{at: 14750 * time.Millisecond, settle: "a", costs: []int64{8}, want: room(6, 4, 29750*time.Millisecond)},
			},
		},
		{
			name:        "a sliding log's higher cost is charged at the settlement's instant",
			explanation: settleCharges,
			steps: []step{
				{at: 0, take: log(1), as: "a", want: room(1, 9, 10*s)},
				{at: 2 * s, settle: "a", costs: []int64{4}, want: room(4, 6, 12*s)},
				{at: 10 * s, peek: log(0), want: room(3, 7, 12*s)},
				{at: 12 * s, peek: log(0), want: room(0, 10, 12*s)},
			},
		},
		{
			name:        "fixed window: a debt lasts until reset at",
			explanation: settleDebt,
			steps: []step{
				{at: 0, take: fixed(1), as: "a", want: room(1, 9, 10*s)},
				{at: s, settle: "a", costs: []int64{25}, want: room(25, 0, 10*s)},
				{at: 2 * s, take: fixed(1), want: full(25, 0, 10*s, 10*s)},
				{at: 2 * s, take: fixed(0), want: full(25, 0, 10*s, 10*s)},
				{at: 2 * s, peek: fixed(0), want: full(25, 0, 10*s, 10*s)},
				{at: 2 * s, take: fixed(11), want: full(25, 0, 10*s, forever)},
				{at: 10 * s, take: fixed(10), want: room(10, 0, 20*s)},
			},
		},
		{
			name:        "a decision that was never taken is charged, room or no room",
			explanation: settleUntaken,
			run:         settlesUntaken,
		},
		{
			name:        "a refund that leaves a debt refuses nothing",
			explanation: refundStands,
			steps: []step{
				{at: 0, take: fixed(1), as: "a", want: room(1, 9, 10*s)},
				{at: 0, take: fixed(2), as: "b", want: room(3, 7, 10*s)},
				{at: s, settle: "a", costs: []int64{25}, want: room(27, 0, 10*s)},
				{at: 2 * s, refund: "b", want: room(25, 0, 10*s)},
			},
		},
		{
			name:        "sliding window: a debt slides out",
			explanation: settleDebt,
			steps: []step{
				{at: 0, take: sliding(1), as: "a", want: room(1, 9, 19750*time.Millisecond)},
				{at: 0, settle: "a", costs: []int64{15}, want: room(15, 0, 19750*time.Millisecond)},
				// 15 * (10 s - x) / 10 s is 10 or less from 3334 ms into the next window.
				{at: s, take: sliding(0), want: full(15, 0, 19750*time.Millisecond, 13084*time.Millisecond)},
				{at: 13083 * time.Millisecond, take: sliding(0), want: full(11, 0, 19750*time.Millisecond, 13084*time.Millisecond)},
				{at: 13084 * time.Millisecond, take: sliding(0), want: room(10, 0, 19750*time.Millisecond)},
			},
		},
		{
			name:        "sliding log: a debt leaves with its charges",
			explanation: settleDebt,
			steps: []step{
				{at: 0, take: log(4), as: "a", want: room(4, 6, 10*s)},
				{at: s, take: log(1), want: room(5, 5, 11*s)},
				{at: 2 * s, settle: "a", costs: []int64{12}, want: room(13, 0, 12*s)},
				{at: 2 * s, take: log(0), want: full(13, 0, 12*s, 10*s)},
				{at: 2 * s, take: log(2), want: full(13, 0, 12*s, 11*s)},
				{at: 2 * s, take: log(3), want: full(13, 0, 12*s, 12*s)},
				{at: 10 * s, take: log(1), want: room(10, 0, 20*s)},
			},
		},
		{
			name:        "token bucket: a debt drains",
			explanation: settleDebt,
			steps: []step{
				{at: 0, take: token(1), as: "a", want: room(1, 9, s)},
				{at: 0, settle: "a", costs: []int64{15}, want: room(15, 0, 15*s)},
				{at: 0, take: token(0), want: full(15, 0, 15*s, 5*s)},
				{at: 0, take: token(1), want: full(15, 0, 15*s, 6*s)},
				{at: 4999 * time.Millisecond, take: token(0), want: full(11, 0, 15*s, 5*s)},
				{at: 5 * s, take: token(0), want: room(10, 0, 15*s)},
				{at: 6 * s, take: token(1), want: room(10, 0, 16*s)},
			},
		},
		{
			name:        "leaky bucket: a debt makes the queue longer than it may be",
			explanation: settleDebt,
			steps: []step{
				{at: 0, take: leaky(1), as: "a", want: queued(1, 9, s, 0)},
				{at: 0, settle: "a", costs: []int64{15}, want: queued(15, 0, 15*s, s)},
				{at: 0, take: leaky(0), want: full(15, 0, 15*s, 5*s)},
				{at: 5500 * time.Millisecond, take: leaky(1), want: full(10, 0, 15*s, 6*s)},
				{at: 6 * s, take: leaky(1), want: queued(10, 0, 16*s, 15*s)},
			},
		},
		{
			name:        "each charge has its own real cost",
			explanation: settleCharges,
			steps: []step{
				{at: 0, take: append(orgs(4), fixed(4)...), as: "a", want: all(room(4, 16, 60*s), room(4, 6, 20*s), room(4, 6, 10*s))},
				{at: s, settle: "a", costs: []int64{12, 1}, want: all(room(12, 8, 60*s), room(12, 0, 20*s), room(1, 9, 10*s))},
				// One of the three limits is in debt: it refuses the whole take.
				{at: s, take: append(orgs(0), fixed(1)...), want: all(room(12, 8, 60*s), full(12, 0, 20*s, 20*s), room(1, 9, 10*s))},
				{at: s, peek: append(orgs(1), fixed(0)...), want: all(room(12, 8, 60*s), full(12, 0, 20*s, 20*s), room(1, 9, 10*s))},
			},
		},
		{
			name:        "a take of nothing can be settled",
			explanation: settleCharges,
			steps: []step{
				{at: 0, take: fixed(0), as: "a", want: room(0, 10, 0)},
				{at: s, settle: "a", costs: []int64{4}, want: room(4, 6, 11*s)},
			},
		},
		{
			name:        "a debt of 2^53 is exact",
			explanation: exactCounts,
			steps: []step{
				{at: 0, take: fixed(1), as: "a", want: room(1, 9, 10*s)},
				{at: 0, settle: "a", costs: []int64{quota.MaxQuota}, want: room(quota.MaxQuota, 0, 10*s)},
				{at: 0, take: fixed(0), want: full(quota.MaxQuota, 0, 10*s, 10*s)},
				{at: 10 * s, take: largest(quota.MaxQuota), as: "b", want: room(quota.MaxQuota, 0, 20*s)},
				{at: 10 * s, settle: "b", costs: []int64{1}, want: room(1, quota.MaxQuota-1, 20*s)},
			},
		},
	}
}

// settlesUntaken charges new counts and others only by settlements, in the order of time and
// behind it, and expects the counts that takes would have left.
func settlesUntaken(ctx context.Context, backend driver.Backend) error {
	now := t0.UnixMilli()
	for i, l := range tenPer10s {
		p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{l, {Quota: 100, Window: time.Hour}}}
		charge := throttler.Charge{Policy: p, Key: fmt.Sprint("key", i), Partition: "part"}
		untaken := driver.NewDecision(driver.NewRequest(now, charge))
		untaken.Allowed = true
		for _, step := range []struct{ at, cost, used int64 }{{0, 4, 4}, {0, 9, 13}} {
			d, err := backend.Settle(ctx, driver.Settlement{Now: now + step.at, Charged: untaken, Costs: []int64{step.cost}})
			if err != nil {
				return err
			}
			got := decision.FromDriver(d)
			if s, long := got.Limit(0), got.Limit(1); !d.Allowed || s.Used != step.used || s.Refused || long.Used != step.used || !long.ResetAt.Equal(t0.Add(time.Hour)) {
				return fmt.Errorf("%v: after %d, got %v; want %d used", l, step.cost, got, step.used)
			}
		}
		// From a process that is behind.
		if _, err := backend.Settle(ctx, driver.Settlement{Now: now - 1000, Charged: untaken, Costs: []int64{1}}); err != nil {
			return err
		}
		charge.Cost = 1
		d, err := backend.Take(ctx, driver.NewRequest(now, charge))
		if err != nil {
			return err
		}
		got := decision.FromDriver(d)
		if s, long := got.Limit(0), got.Limit(1); d.Allowed || !s.Refused || s.Used < 13 || long.Used != 14 {
			return fmt.Errorf("%v: got %v, want a refusal with 14 used", l, got)
		}
	}
	return nil
}
