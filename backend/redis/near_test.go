package redisbackend

import (
	"testing"
	"time"
)

// Few flights go to a server that is near, as the quickest of its flights in a minute
// shows, and many to one that is far away.
func TestFlightsByDistance(t *testing.T) {
	type landing struct {
		ago, took time.Duration
		work      int
		failed    bool
	}
	const us, ms = time.Microsecond, time.Millisecond
	quick := landing{took: 300 * us, work: 1}
	for _, test := range []struct {
		name   string
		landed []landing // oldest first
		before []time.Duration
		want   int
	}{
		{name: "nothing is known", want: maxFlights},
		{name: "near", landed: []landing{quick}, want: nearFlights},
		{name: "far", landed: []landing{{took: ms, work: 1}}, want: maxFlights},
		{name: "far, large flights", landed: []landing{{took: 3 * ms, work: 256}}, want: maxFlights},
		{name: "near, large flights", landed: []landing{{took: ms, work: 256}}, want: nearFlights},
		{name: "near, no reply", landed: []landing{{took: 300 * us, work: 1, failed: true}}, want: maxFlights},
		{name: "near and busy: one of many is quick", landed: []landing{
			{ago: 59 * time.Second, took: 300 * us, work: 1}, {ago: 40 * time.Second, took: 5 * ms, work: 4}, {took: 20 * ms, work: 4},
		}, want: nearFlights},
		{name: "moved away", landed: []landing{{ago: time.Minute, took: 300 * us, work: 1}, {took: ms, work: 1}}, want: maxFlights},
		{name: "moved here", landed: []landing{{ago: ms, took: ms, work: 1}, quick}, want: nearFlights},
		{name: "near, one is late", landed: []landing{quick}, before: []time.Duration{late}, want: nearFlights + 1},
		{name: "near, most are late", landed: []landing{quick}, before: []time.Duration{late, late, late, late, late, late, late}, want: maxFlights},
		{name: "far, some are late", before: []time.Duration{late, late, late}, want: maxFlights},
	} {
		now := time.Now()
		l := &line{nearTime: nearTime}
		for _, f := range test.landed {
			landed := now.Add(-f.ago)
			l.landed(&flight{departed: landed.Add(-f.took), work: f.work, outcome: outcome{answered: !f.failed}}, landed)
		}
		for _, d := range test.before {
			l.flights = append(l.flights, &flight{departed: now.Add(-d)})
		}
		for l.mayDepart(now) && len(l.flights) < 100 {
			l.flights = append(l.flights, &flight{departed: now})
		}
		if got := len(l.flights); got != test.want {
			t.Errorf("%s: %d flights are on their way at once, want %d", test.name, got, test.want)
		}
	}
}
