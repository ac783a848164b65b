package algorithm

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Each case spoils one field of a plausible reply. The error names the field.
func TestPlausible(t *testing.T) {
	const now, soon, far = int64(1_900_000_000_000), int64(1_900_000_001_000), maxInstant + 2*maxWindow
	fixed := quota.Limit{Quota: 10, Window: time.Minute}
	refused := driver.Result{Used: 10, ResetAt: soon, RetryAt: soon, NextAt: soon}
	if err := plausible(&fixed, 3, now, &refused); err != nil {
		t.Fatal(err)
	}
	never := driver.Result{Used: 10, ResetAt: soon, RetryAt: driver.NeverFits, NextAt: soon}
	if err := plausible(&fixed, 11, now, &never); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		cost  int64
		spoil func(r *driver.Result)
		want  string
	}{
		{3, func(r *driver.Result) { r.Used = -1 }, "used"},
		{3, func(r *driver.Result) { r.Used = maxCount + 1 }, "used"},
		{3, func(r *driver.Result) { r.ResetAt = now - 1 }, "reset at"},
		{3, func(r *driver.Result) { r.ResetAt = far }, "reset at"},
		{3, func(r *driver.Result) { r.RetryAt = driver.NeverFits }, "retry at"},
		{3, func(r *driver.Result) { r.RetryAt = driver.NeverFits - 1 }, "retry at"},
		{3, func(r *driver.Result) { r.RetryAt = now - 1 }, "retry at"},
		{3, func(r *driver.Result) { r.RetryAt = far }, "retry at"},
		{11, func(*driver.Result) {}, "retry at"}, // it never fits
		{3, func(r *driver.Result) { r.NextAt = now - 1 }, "next at"},
		{3, func(r *driver.Result) { r.Used = 9 }, "next at"}, // now
		{3, func(r *driver.Result) { r.StartAt = soon }, "start at"},
		{3, func(r *driver.Result) { r.Mark.At = -1 }, "mark"},
		{3, func(r *driver.Result) { r.Mark.At = far }, "mark"},
		{3, func(r *driver.Result) { r.Mark.Fraction = -1 }, "mark"},
		{3, func(r *driver.Result) { r.Mark.Fraction = maxCount + 1 }, "mark"},
	} {
		r := refused
		test.spoil(&r)
		if err := plausible(&fixed, test.cost, now, &r); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v for a cost of %d: got %v; want an error about %s", r, test.cost, err, test.want)
		}
	}
}
