package redisbackend_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// One window of a common length is an integer to Redis, for as long as its count and
// its reset time let it be; and says what package algorithm does all the while.
func TestWindowsAreIntegers(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	in2025 := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	for _, test := range []struct {
		window time.Duration
		now    time.Time
		code   string // "" if it has none
	}{
		{time.Second, t0, "101"},
		{99 * time.Second, t0, "199"},
		{100 * time.Second, t0, ""},
		{2 * time.Minute, t0, "202"},
		{hour, t0, "260"},
		{99 * time.Minute, t0, "299"},
		{100 * time.Minute, t0, ""},
		{2 * hour, t0, "302"},
		{day, t0, "324"},
		{99 * hour, t0, "399"},
		{100 * hour, t0, ""},
		{5 * day, t0, "405"},
		{99 * day, t0, "499"},
		{100 * day, t0, ""},
		{500 * time.Millisecond, t0, ""},
		{hour + time.Millisecond, t0, ""},
		{hour, in2025.Add(-hour - 1), ""},
		{hour, in2025, "260"},
		{hour, in2025.Add(1e12*time.Millisecond - hour - time.Millisecond), "260"},
		{hour, in2025.Add(1e12*time.Millisecond - hour), ""},
	} {
		for _, aligned := range []bool{false, true} {
			if aligned && !test.now.Equal(t0) {
				continue // it begins elsewhere
			}
			c := policy("core", throttler.Limit{Quota: 20_000, Window: test.window, Aligned: aligned}).Charge(test.now.String() + test.window.String())
			if aligned {
				c.Policy.Name = "aligned"
			}
			c.Partition = c.Key
			key, state := b.backend.Locate(c).Key, new(algorithm.State)
			check := func(digits bool, got driver.Decision, err error, want driver.Decision) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				compareDecisions(t, 0, got, want)
				stored, err := algorithm.Parse([]byte(b.client.Get(t.Context(), key).Val()))
				if err != nil {
					t.Fatal(err)
				}
				again := driver.NewRequest(test.now.UnixMilli(), c)
				compareDecisions(t, 0, algorithm.Evaluate(again, []*algorithm.State{&stored}), algorithm.Evaluate(again, []*algorithm.State{state}))
				code := test.code
				if aligned && code != "" {
					code = string(code[0]+4) + code[1:]
				}
				value, encoding := b.client.Get(t.Context(), key).Val(), b.client.ObjectEncoding(t.Context(), key).Val()
				if (encoding == "int") != digits || digits && value[:3] != code {
					t.Errorf("window %v, aligned %v, at %v, used %d: %q is stored as %s", test.window, aligned, test.now, got.Results()[0].Used, value, encoding)
				}
			}
			take := func(cost int64) (driver.Decision, driver.Decision, error) {
				c.Cost = cost
				r := driver.NewRequest(test.now.UnixMilli(), c)
				got, err := b.backend.Take(t.Context(), r)
				return got, algorithm.Take(r, []*algorithm.State{state}), err
			}
			int := test.code != ""
			for _, step := range []struct {
				cost   int64
				digits bool
			}{{1, int}, {9000, int}, {998, int}, {1, false}, {1, false}, {10_000, false}} {
				got, want, err := take(step.cost)
				check(step.digits, got, err, want)
				if step.cost == 10_000 { // refused
					continue
				}
				if step.cost == 1 && !step.digits && want.Results()[0].Used == 10_000 { // and back
					s := driver.Settlement{Now: test.now.UnixMilli(), Charged: got, Costs: []int64{0}}
					got, err = b.backend.Settle(t.Context(), s)
					s.Charged = want
					check(int, got, err, algorithm.Settle(s, []*algorithm.State{state}))
					got, want, err = take(1)
					check(false, got, err, want)
				}
			}
		}
	}
}

// A window that an earlier version has stored continues.
func TestWindowsInBytesGoOn(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	c := policy("core", perHour(10)).Charge("alice")
	c.Cost, c.Partition = 3, c.Key
	state := new(algorithm.State)
	algorithm.Take(driver.NewRequest(t0.UnixMilli(), c), []*algorithm.State{state})
	b.client.Set(t.Context(), b.backend.Locate(c).Key, state.Append(nil), time.Hour)
	if d, err := b.Take(t.Context(), c); err != nil || d.Limit(0).Used != 6 || !d.Limit(0).ResetAt.Equal(t0.Add(time.Hour)) {
		t.Errorf("%+v, %v; want 6 used, and the reset time of before", d, err)
	}
}
