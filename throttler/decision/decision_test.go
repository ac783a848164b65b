package decision_test

import (
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

var t0 = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func newThrottler() (*throttler.Throttler, *clock.Manual) {
	c := clock.NewManual(t0)
	return throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c}), c
}

func TestBindingIsTheLimitThatRefusedOrIsNearestToEmpty(t *testing.T) {
	th, c := newThrottler()
	p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 20, Window: time.Minute}, {Quota: 5, Window: 3 * time.Second}}}
	var d throttler.Decision
	for range 5 {
		d, _ = th.Take(t.Context(), p.Charge("k"))
	}
	if got := d.Binding().Limit.Quota; got != 5 {
		t.Errorf("15 of 20 and 0 of 5 left: the limit of %d binds, want the limit of 5", got)
	}
	d, _ = th.Take(t.Context(), p.Charge("k"))
	if d.Allowed || d.Binding().Limit.Quota != 5 || !d.RetryAt().Equal(t0.Add(3*time.Second)) || d.Limit(0).Used != 5 || d.Limit(0).Refused {
		t.Errorf("the sixth call: %+v, retry at %v", d, d.RetryAt())
	}
	for range 3 {
		c.Advance(3 * time.Second)
		for range 5 {
			d, _ = th.Take(t.Context(), p.Charge("k"))
		}
	}
	if got := d.Binding().Limit.Quota; got != 20 {
		t.Errorf("both empty: the limit of %d binds, want the limit of 20, which frees last", got)
	}
	d, _ = th.Take(t.Context(), p.Charge("k"))
	if !d.RetryAt().Equal(t0.Add(time.Minute)) {
		t.Errorf("both refuse: retry at %v, want when the later one frees", d.RetryAt())
	}
}

func TestEachStatusNamesItsLimit(t *testing.T) {
	teams := &throttler.Policy{Name: "team", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}, {Quota: 8, Window: time.Minute}}}
	users := &throttler.Policy{Name: "user", Limits: []throttler.Limit{{Quota: 7, Window: time.Hour}, {Quota: 6, Window: time.Minute}, {Quota: 5, Window: time.Second}}}
	th, _ := newThrottler()
	d, err := th.Take(t.Context(), teams.Charge("blue"), throttler.Charge{Policy: users, Key: "alice", Cost: 2})
	if err != nil || d.NumLimits() != 5 || len(d.Charges()) != 2 {
		t.Fatalf("%v, error %v; want 5 limits of 2 charges", d, err)
	}
	for i, s := range d.Limits() {
		c, index := d.Charges()[0], i
		if i >= 2 {
			c, index = d.Charges()[1], i-2
		}
		if s.Policy != c.Policy || s.Key != c.Key || s.Cost != c.Cost || s.Used != c.Cost || s.Index != index || s.Limit != c.Policy.Limits[index] {
			t.Errorf("limit %d: %+v; want limit %d of policy %q", i, s, index, c.Policy.Name)
		}
	}
	if s := d.Binding(); s.Policy != users || s.Index != 2 {
		t.Errorf("limit %d of policy %q binds, want limit 2 of user: it has room for one more such charge", s.Index, s.Policy.Name)
	}
	if text := d.String(); strings.Contains(text, "alice") || strings.Contains(text, "blue") {
		t.Errorf("%q has a key, and is for logs", text)
	}
}

func TestFromDriverReadsWhatTheBackendWrote(t *testing.T) {
	p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}, {Quota: 4, Window: time.Minute}}}
	raw := driver.NewDecision(driver.NewRequest(t0.UnixMilli(), throttler.Charge{Policy: p, Key: "k", Cost: 5, Partition: "k"}))
	raw.Degraded = true
	copy(raw.Results(), []driver.Result{
		{Used: 3, ResetAt: t0.Add(time.Hour).UnixMilli()},
		{Used: 3, ResetAt: t0.Add(time.Minute).UnixMilli(), RetryAt: driver.NeverFits},
	})
	d := decision.FromDriver(raw)
	fits, never := d.Limit(0), d.Limit(1)
	if d.Allowed || !d.Degraded || !d.At().Equal(t0) || !d.StartAt().Equal(t0) || !d.RetryAt().Equal(decision.Never) {
		t.Errorf("%v, degraded %v, at %v, start %v, retry %v", d, d.Degraded, d.At(), d.StartAt(), d.RetryAt())
	}
	if fits.Refused || !fits.RetryAt.IsZero() || fits.Remaining != 6 || !fits.ResetAt.Equal(t0.Add(time.Hour)) || !fits.StartAt.IsZero() {
		t.Errorf("the limit with room: %+v", fits)
	}
	if !never.Refused || !never.RetryAt.Equal(decision.Never) || never.Remaining != 1 || never.StartAt != (time.Time{}) {
		t.Errorf("the limit of 4: %+v; a cost of 5 never fits", never)
	}

	d.Driver().Results()[0].Used = 9
	if s := d.Limit(0); s.Used != 9 || s.Remaining != 0 {
		t.Errorf("%+v; want what was written to Driver", s)
	}
}

// The zero decision, which is returned with an error, can be read.
func TestTheZeroDecisionSaysNothing(t *testing.T) {
	var d decision.Decision
	if d.Allowed || d.NumLimits() != 0 || len(d.Charges()) != 0 || d.Binding() != (decision.Status{}) || !d.RetryAt().IsZero() {
		t.Errorf("%v, %+v, retry at %v", d, d.Binding(), d.RetryAt())
	}
	for i, s := range d.Limits() {
		t.Errorf("limit %d: %+v", i, s)
	}
}
