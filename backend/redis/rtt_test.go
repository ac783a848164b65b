package redisbackend

import (
	"testing"
	"time"
)

// Few flights go to a server that is near, as the quickest of many flights shows, and
// many to one that is far away.
func TestFlightsByDistance(t *testing.T) {
	type landing struct {
		times, limits, behind int // limits of it, and of what else is on its way
		took                  time.Duration
		failed, refused       bool // without an answer, with an error for one
	}
	const us, ms = time.Microsecond, time.Millisecond
	quick := landing{times: 1, limits: 1, took: 300 * us}
	slow := landing{times: farAfter, limits: 1, took: ms}
	for _, test := range []struct {
		name   string
		landed []landing
		before []time.Duration // how long flights have been on their way
		want   int             // flights at once, these included
	}{
		{name: "new", want: nearFlights},
		{name: "new, and near", landed: []landing{{times: newFarAfter - 1, limits: 1, took: ms}, quick, {times: newFarAfter, limits: 1, took: ms}}, want: nearFlights},
		{name: "new, and far", landed: []landing{{times: newFarAfter, limits: 1, took: ms}}, want: maxFlights},
		{name: "new, and failing", landed: []landing{{times: newFarAfter, limits: 1, took: ms, failed: true}}, want: nearFlights},
		{name: "far, in large flights", landed: []landing{{times: newFarAfter, limits: 256, took: 3 * ms}}, want: maxFlights},
		{name: "near, in large flights", landed: []landing{{times: farAfter, limits: 256, took: ms}}, want: nearFlights},
		{name: "near, behind large flights", landed: []landing{{times: farAfter, limits: 1, behind: 256, took: ms}}, want: nearFlights},
		{name: "near and busy", landed: []landing{quick, {times: farAfter - 1, limits: 4, took: 20 * ms}}, want: nearFlights},
		{name: "near and busy for long", landed: []landing{slow, quick, {times: farAfter - 1, limits: 4, took: 20 * ms}}, want: nearFlights},
		{name: "near, and moves away", landed: []landing{quick, slow}, want: maxFlights},
		{name: "far, and moves here", landed: []landing{slow, slow, quick}, want: nearFlights},
		{name: "far, and fails at once", landed: []landing{slow, {times: 1, limits: 1, took: us, failed: true}}, want: maxFlights},
		{name: "far, and a proxy refuses at once", landed: []landing{slow, {times: 1, limits: 1, took: us, refused: true}}, want: maxFlights},
		{name: "near, and one is late", before: []time.Duration{late}, want: nearFlights + 1},
		{name: "near, and most are late", before: []time.Duration{late, late, late, late, late, late, late}, want: maxFlights},
		{name: "far, and some are late", landed: []landing{slow}, before: []time.Duration{late, late, late}, want: maxFlights},
	} {
		now := time.Now()
		l := &line{nearTime: nearTime, slow: farAfter - newFarAfter, mostFlights: maxFlights}
		for _, f := range test.landed {
			for range f.times {
				landing := &flight{departed: now.Add(-f.took), limits: f.limits, outcome: outcome{answered: !f.failed}}
				if f.refused {
					landing.outcome.err = errReply
				}
				l.flights = []*flight{{limits: f.behind}, landing}
				l.landed(landing, now)
			}
			l.flights = nil
		}
		for _, d := range test.before {
			l.flights = append(l.flights, &flight{departed: now.Add(-d)})
		}
		for l.mayDepart(now) && len(l.flights) < 100 {
			l.flights = append(l.flights, &flight{departed: now})
		}
		if got := len(l.flights); got != test.want {
			t.Errorf("%s: %d flights at once, want %d", test.name, got, test.want)
		}
	}
}
