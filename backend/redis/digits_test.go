package redisbackend_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// A single window of a common length is an integer in Redis, as long as its count and its
// reset time fit. It always decides like package algorithm.
func TestWindowsAreIntegers(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	in2025 := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	for _, test := range []struct {
		window time.Duration
		now    time.Time
		code   string // "" if not stored as digits
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
				continue // it would begin at another time
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
				if step.cost == 1 && !step.digits && want.Results()[0].Used == 10_000 { // after a refund
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

// For digits of this window and of others, and values that only look like digits, the script
// decides like package algorithm or, if the package reads no state, changes nothing.
func TestSequentialDigitsOfAnyWindow(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	now := t0.UnixMilli()
	since := now - 1735689600000
	values := []string{strings.Repeat(" ", 19), strings.Repeat("9", 19), strings.Repeat("0", 19), "2600000000000000000"}
	values = append(values, "2605", "2605000000000000", "26050000000000000001") // digits of another length
	for _, code := range []int{101, 202, 259, 260, 261, 302, 499, 560, 660, 899} {
		for _, at := range []int64{0, since - 1, since, since + 1, since + 1000, since + time.Hour.Milliseconds(), 999_999_999_999} {
			for _, used := range []int{0, 1, 9998, 9999} {
				values = append(values, fmt.Sprintf("%d%012d%04d", code, at, used))
			}
		}
	}
	for _, at := range []int64{since - 1000, since + 1000} { // it has ended, and it is open
		for i := range 19 {
			value := fmt.Appendf(nil, "260%012d0001", at)
			for _, value[i] = range []byte("x -.\x00\xff") {
				values = append(values, string(value))
			}
		}
	}
	for _, value := range values {
		for i := range int64(6) {
			cost, limit := i%3, perHour(2)
			if i < 3 {
				limit = perHour(20_000)
			}
			c := policy("core", limit).Charge(value)
			c.Partition, c.Cost = c.Key, cost
			check := func(how string, r driver.Request, got driver.Decision, err error, now string) {
				t.Helper()
				state, parseErr := algorithm.Parse([]byte(value))
				stored, _ := algorithm.Parse([]byte(now))
				switch {
				case parseErr == nil && err == nil:
					want := algorithm.Take(r, []*algorithm.State{&state})
					g, w := got.Results()[0], want.Results()[0]
					if got.Allowed != want.Allowed || g.Used != w.Used || g.ResetAt != w.ResetAt || g.RetryAt != w.RetryAt {
						t.Errorf("%q, cost %d, %s: got  %+v\nthe model says %+v", value, cost, how, got, want)
					}
					if is, _ := algorithm.ReadWindow(stored.Append(nil)); want.Allowed && cost > 0 {
						if then, _ := algorithm.ReadWindow(state.Append(nil)); is != then {
							t.Errorf("%q, cost %d, %s: it is now %q, which is %+v; the model says %+v", value, cost, how, now, is, then)
						}
					} else if now != value {
						t.Errorf("%q, cost %d, %s: charged nothing, and is now %q", value, cost, how, now)
					}
				case parseErr == nil:
					t.Errorf("%q, cost %d, %s: %v", value, cost, how, err)
				case err == nil || now != value || !strings.Contains(err.Error(), "something other than a count"):
					t.Errorf("%q, cost %d, %s: %+v, %v; it is no state, and is now %q", value, cost, how, got, err, now)
				}
			}
			var requests [3]driver.Request // one alone, and two together
			var keys []string
			_, err := b.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for i := range requests {
					c.Key = fmt.Sprint(i, value)
					c.Partition = c.Key
					requests[i] = driver.NewRequest(now, c)
					keys = append(keys, b.backend.Locate(c).Key)
					p.Set(t.Context(), keys[i], value, time.Hour)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			one, err := b.backend.Take(t.Context(), requests[0])
			two, errs := b.backend.TakeTogether(t.Context(), requests[1:]...)
			stored, failed := b.client.MGet(t.Context(), keys...).Result()
			if failed != nil {
				t.Fatal(failed)
			}
			check("alone", requests[0], one, err, stored[0].(string))
			check("first", requests[1], two[0], errs[0], stored[1].(string))
			check("second", requests[2], two[1], errs[1], stored[2].(string))
		}
	}
}

// A server that accepts no writes charges nothing, in a call of one decision or of several.
func TestNoWriteNoCharge(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	var takes []driver.Request
	for _, key := range []string{"alice", "bob"} {
		c := policy("core", perHour(10)).Charge(key)
		c.Partition, c.Cost = c.Key, 1
		takes = append(takes, driver.NewRequest(t0.UnixMilli(), c))
	}
	_, errs := b.backend.TakeTogether(t.Context(), takes...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	full := func(limit string) {
		if err := b.client.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	full("1")
	for _, cost := range []int64{1, 2} {
		var dear []driver.Request
		for _, r := range takes {
			c := r.Charges()[0]
			c.Cost = cost
			dear = append(dear, driver.NewRequest(r.Now, c))
		}
		if d, err := b.backend.Take(t.Context(), dear[0]); err == nil {
			t.Errorf("alone, cost %d: %+v, want an error", cost, d)
		}
		for i := range dear {
			if all, errs := b.backend.TakeTogether(t.Context(), dear...); errs[i] == nil {
				t.Errorf("of several, cost %d: %+v, want an error", cost, all[i])
			}
		}
	}
	full("0")
	all, errs := b.backend.TakeTogether(t.Context(), takes...)
	for i := range all {
		if errs[i] != nil || all[i].Results()[0].Used != 2 {
			t.Errorf("once it takes writes again: %+v, %v; want 2 used", all[i], errs[i])
		}
	}
}
