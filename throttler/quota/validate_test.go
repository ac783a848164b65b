package quota_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/quota"
)

func policy(name string, limits ...quota.Limit) *quota.Policy {
	return &quota.Policy{Name: name, Limits: limits}
}

func per(units int64, window time.Duration) quota.Limit {
	return quota.Limit{Quota: units, Window: window}
}

func TestBadPoliciesSayWhatIsWrong(t *testing.T) {
	log := quota.Limit{Quota: 10_001, Window: time.Second, Algorithm: quota.SlidingLog}
	for _, test := range []struct {
		policy *quota.Policy
		want   string
	}{
		{nil, "policy is nil"},
		{&quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: 5, Algorithm: quota.InFlight}}}, "window is missing; an in-flight has one, the lease"},
		{policy("", per(1, time.Second)), `policy name is ""`},
		{policy("a b", per(1, time.Second)), `policy name is "a b"; it must be 1 to 64 letters`},
		{&quota.Policy{Name: "p", Limits: []quota.Limit{per(1, time.Second)}, ParentKey: "k"}, `policy "p": it has a parent key and no parent`},
		{&quota.Policy{Name: "p", Limits: []quota.Limit{per(1, time.Second)}, Parent: "a b"}, `policy "p": parent is "a b"; it must be the name of a policy`},
		{&quota.Policy{Name: "p", Limits: []quota.Limit{per(1, time.Second)}, Parent: "p"}, `policy "p": it is its own parent`},
		{policy("p"), `policy "p" has 0 limits; it must have from 1 to 16`},
		{policy("p", per(0, time.Second)), `policy "p": limit 0: quota is 0; it must be from 1 to 9007199254740992 (2^53)`},
		{policy("p", per(5, time.Second), per(-1, time.Hour)), `limit 1: quota is -1`},
		{policy("p", per(1<<53+1, time.Second)), `quota is 9007199254740993`},
		{policy("p", per(1, 0)), `window is 0s; it must be from 1ms`},
		{policy("p", per(1, time.Nanosecond)), `window is 1ns; it must be from 1ms`},
		{policy("p", per(1, -time.Second)), `window is -1s`},
		{policy("p", per(1, 1500*time.Microsecond)), `window is 1.5ms; it must be whole milliseconds`},
		{policy("p", per(1, 367*24*time.Hour)), `window is 8808h0m0s`},
		{policy("p", quota.Limit{Quota: 1, Window: time.Second, Algorithm: 9}), `algorithm is Algorithm(9)`},
		{policy("p", log), `quota is 10001; a sliding-log stores every charge, so it must be at most 10000`},
		{policy("p", quota.Limit{Quota: 10_001, Window: time.Second, Algorithm: quota.InFlight}), `quota is 10001; an in-flight stores every unit, so it must be at most 10000`},
		{policy("p", quota.Limit{Quota: 1, Window: time.Second, Burst: 5}), `burst is 5; only a token-bucket or a leaky-bucket has one, not a fixed-window`},
		{policy("p", quota.Limit{Quota: 1, Window: time.Second, Algorithm: quota.TokenBucket, Burst: -5}), `burst is -5`},
		{policy("p", quota.Limit{Quota: 1, Window: time.Second, Algorithm: quota.TokenBucket, MaxWait: time.Second}), `max wait is 1s; only a leaky-bucket has one, not a token-bucket`},
		{policy("p", quota.Limit{Quota: 1, Window: time.Second, Algorithm: quota.SlidingWindow, Aligned: true}), `only a fixed-window can be aligned`},
		{policy("p", quota.Limit{Quota: 1, Window: 24 * time.Hour, Algorithm: quota.TokenBucket, Burst: 367}), `a burst of 367 at 1 per 24h0m0s takes longer than`},
		{policy("p", quota.Limit{Quota: 10_000, Window: time.Second, Algorithm: quota.SlidingLog}, quota.Limit{Quota: 500, Window: time.Minute, Algorithm: quota.SlidingLog}), `with limit 1, 500 per 1m0s (sliding-log), its limits are 88 units of work for a server; they may be 84`},
		{policy("p", per(5, time.Second), quota.Limit{Quota: 9, Window: time.Second, Aligned: true}), `limits 0 and 1 are both a fixed-window of 1s; one aligned and one not; keep one of them`},
		{policy("p", quota.Limit{Quota: 5, Window: time.Second, Algorithm: quota.InFlight}, quota.Limit{Quota: 9, Window: time.Minute, Algorithm: quota.InFlight}), `limits 0 and 1 are both in-flight; a decision holds one unit`},
		{policy("p", per(5, time.Second), per(9, time.Second)), `limits 0 and 1 are both a fixed-window of 1s; only the smaller quota could ever refuse`},
	} {
		err := test.policy.Validate()
		if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v:\n got %v\nwant an ErrInvalid with %q", test.policy, err, test.want)
		}
	}
}

func TestWarningsNameThePair(t *testing.T) {
	bucket := quota.Limit{Quota: 600, Window: 600 * time.Second, Algorithm: quota.TokenBucket, Burst: 5}
	for _, test := range []struct {
		limits []quota.Limit
		want   []string // a part of each warning
	}{
		{[]quota.Limit{per(20, time.Minute), per(5, 3*time.Second)}, nil},
		{[]quota.Limit{per(600, 600*time.Second), per(10, 10*time.Second)}, []string{"limit 0, 600 per 10m0s (fixed-window), can never refuse next to limit 1, 10 per 10s"}},
		{[]quota.Limit{per(10, 10*time.Second), per(601, 600*time.Second)}, []string{"limit 1, 601 per 10m0s"}},
		{[]quota.Limit{per(10, 10*time.Second), per(599, 600*time.Second)}, nil},
		{[]quota.Limit{per(20, time.Second), per(10, 10*time.Second)}, []string{"limit 0, 20 per 1s (fixed-window), can never refuse next to limit 1"}},
		{[]quota.Limit{per(10, 10*time.Second), bucket}, nil}, // its burst binds
		{[]quota.Limit{per(5, time.Minute), calendar(10_000, quota.Day)}, []string{"limit 1, 10000 per day (fixed-window), can never refuse next to limit 0, 5 per 1m0s (fixed-window), which lets no more than 7805 units through in 26h1m0s"}},
		{[]quota.Limit{per(5, time.Minute), calendar(7_804, quota.Day)}, nil},
		{[]quota.Limit{calendar(50, quota.Month), per(100, time.Hour)}, []string{"limit 1, 100 per 1h0m0s (fixed-window), can never refuse next to limit 0, 50 per month"}},
		{[]quota.Limit{calendar(50, quota.Day), per(60, time.Hour)}, nil}, // an hour may have parts of two days
		{[]quota.Limit{calendar(50, quota.Day), per(60, 25*time.Hour)}, nil},
		{[]quota.Limit{{Quota: 5, Window: time.Hour, Algorithm: quota.InFlight}}, nil},
		{[]quota.Limit{per(60, time.Hour), {Quota: 5, Window: 24 * time.Hour, Algorithm: quota.InFlight}}, []string{
			`policy "p": limit 1, 5 per 24h0m0s (in-flight): a process that is killed holds its units for 24h0m0s; a lease is renewed three times while it is held, so that 1m is enough`,
		}},
	} {
		got := policy("p", test.limits...).Warnings()
		if len(got) != len(test.want) {
			t.Errorf("%v: warnings %q, want %d", test.limits, got, len(test.want))
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], test.want[i]) {
				t.Errorf("%v: warning %q, want %q in it", test.limits, got[i], test.want[i])
			}
		}
	}
}

func calendar(n int64, p quota.Period) quota.Limit {
	return quota.Limit{Quota: n, Calendar: quota.Calendar{Period: p}}
}
