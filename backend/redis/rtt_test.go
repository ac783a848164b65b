package redisbackend

import (
	"slices"
	"testing"
	"time"
)

// Few batches are sent at once, and more behind those that take long: for their size, and
// for what else is in flight.
func TestInFlightByTime(t *testing.T) {
	type sent struct {
		ago    time.Duration
		limits int
	}
	const us, ms = time.Microsecond, time.Millisecond
	for _, test := range []struct {
		name string
		sent []sent
		most int // in flight at once, by the client; 0 for maxInFlight
		want int // in flight in the end, these included
	}{
		{name: "none", want: maxRecent},
		{name: "one", sent: []sent{{300 * us, 1}}, want: maxRecent},
		{name: "two", sent: []sent{{300 * us, 1}, {400 * us, 1}}, want: maxRecent},
		{name: "one takes long", sent: []sent{{ms, 1}}, want: maxRecent + 1},
		{name: "nearly all take long", sent: slices.Repeat([]sent{{ms, 1}}, maxInFlight-1), want: maxInFlight},
		{name: "all take long", sent: slices.Repeat([]sent{{time.Hour, 1}}, maxInFlight), want: maxInFlight},
		{name: "a large one", sent: []sent{{ms, 256}, {ms, 1}}, want: maxRecent},
		{name: "a large one takes long", sent: []sent{{3 * ms, 256}}, want: maxRecent + 1},
		{name: "few connections", sent: []sent{{ms, 1}, {ms, 1}, {ms, 1}}, most: 3, want: 3},
	} {
		now := time.Now()
		b := &batcher{countsFor: countsFor, mostInFlight: test.most}
		if test.most == 0 {
			b.mostInFlight = maxInFlight
		}
		for _, out := range test.sent {
			b.inFlight = append(b.inFlight, &batch{sentAt: now.Add(-out.ago), limits: out.limits})
		}
		for b.canSend(now) && len(b.inFlight) < 100 {
			b.inFlight = append(b.inFlight, &batch{sentAt: now})
		}
		if got := len(b.inFlight); got != test.want {
			t.Errorf("%s: %d batches in flight, want %d", test.name, got, test.want)
		}
	}
}
