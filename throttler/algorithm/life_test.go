package algorithm_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/skewed"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A state lives until its reset time if clocks agree; otherwise, for no longer than its
// limits explain.
func TestLife(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range skewed.Counts(now) {
		state, err := algorithm.Parse(c.State)
		if err != nil {
			t.Fatal(err)
		}
		if got := state.Life(now.UnixMilli()); got < 0 || got > c.Most.Milliseconds() {
			t.Errorf("%s: it lives for %v, want at most %v", c.Name, time.Duration(got)*time.Millisecond, c.Most)
		}
	}
	for _, a := range quota.Algorithms() {
		p := &quota.Policy{Name: "p", Limits: []quota.Limit{{Quota: 10, Window: time.Hour, Algorithm: a}, {Quota: 7, Window: time.Second}}}
		var state algorithm.State
		at := now.UnixMilli()
		for step := range 20 {
			c := p.Charge("alice")
			d := algorithm.Take(driver.NewRequest(at, c), []*algorithm.State{&state})
			if step%3 == 0 {
				algorithm.Settle(driver.Settlement{Now: at, Charged: d, Costs: []int64{int64(step)}}, []*algorithm.State{&state})
			}
			at += 7 * time.Minute.Milliseconds()
			if got, want := state.Life(at), state.ResetAt(at)-at; got != want {
				t.Errorf("%v, step %d: it lives for %d ms, want %d, until it resets", a, step, got, want)
			}
		}
	}
}
