package redisbackend

import (
	"testing"
	"time"
)

// Few batches are in flight to a server with a low round-trip time, as the quickest of
// many batches shows, and many to one with a high round-trip time.
func TestInFlightByRTT(t *testing.T) {
	type observed struct {
		times, limits, behind int // limits of it, and of what else is in flight
		took                  time.Duration
		failed, refused       bool // without an answer, with an error for one
	}
	const us, ms = time.Microsecond, time.Millisecond
	quick := observed{times: 1, limits: 1, took: 300 * us}
	slow := observed{times: highRTTAfter, limits: 1, took: ms}
	for _, test := range []struct {
		name   string
		sent   []observed
		before []time.Duration // since when batches are in flight
		want   int             // batches in flight, these included
	}{
		{name: "new", want: minInFlight},
		{name: "new, and low", sent: []observed{{times: newHighRTTAfter - 1, limits: 1, took: ms}, quick, {times: newHighRTTAfter, limits: 1, took: ms}}, want: minInFlight},
		{name: "new, and high", sent: []observed{{times: newHighRTTAfter, limits: 1, took: ms}}, want: maxInFlight},
		{name: "new, and failing", sent: []observed{{times: newHighRTTAfter, limits: 1, took: ms, failed: true}}, want: minInFlight},
		{name: "high, in large batches", sent: []observed{{times: newHighRTTAfter, limits: 256, took: 3 * ms}}, want: maxInFlight},
		{name: "low, in large batches", sent: []observed{{times: highRTTAfter, limits: 256, took: ms}}, want: minInFlight},
		{name: "low, behind large batches", sent: []observed{{times: highRTTAfter, limits: 1, behind: 256, took: ms}}, want: minInFlight},
		{name: "low and busy", sent: []observed{quick, {times: highRTTAfter - 1, limits: 4, took: 20 * ms}}, want: minInFlight},
		{name: "low and busy for long", sent: []observed{slow, quick, {times: highRTTAfter - 1, limits: 4, took: 20 * ms}}, want: minInFlight},
		{name: "low, and becomes high", sent: []observed{quick, slow}, want: maxInFlight},
		{name: "high, and becomes low", sent: []observed{slow, slow, quick}, want: minInFlight},
		{name: "high, and fails at once", sent: []observed{slow, {times: 1, limits: 1, took: us, failed: true}}, want: maxInFlight},
		{name: "high, and a proxy refuses at once", sent: []observed{slow, {times: 1, limits: 1, took: us, refused: true}}, want: maxInFlight},
		{name: "low, and one has stalled", before: []time.Duration{stalledAfter}, want: minInFlight + 1},
		{name: "low, and most have stalled", before: []time.Duration{stalledAfter, stalledAfter, stalledAfter, stalledAfter, stalledAfter, stalledAfter, stalledAfter}, want: maxInFlight},
		{name: "high, and some have stalled", sent: []observed{slow}, before: []time.Duration{stalledAfter, stalledAfter, stalledAfter}, want: maxInFlight},
	} {
		now := time.Now()
		b := &batcher{lowRTT: lowRTT, slow: highRTTAfter - newHighRTTAfter, mostInFlight: maxInFlight}
		for _, o := range test.sent {
			for range o.times {
				out := &batch{sentAt: now.Add(-o.took), limits: o.limits, outcome: outcome{answered: !o.failed}}
				if o.refused {
					out.outcome.err = errReply
				}
				b.inFlight = []*batch{{limits: o.behind}, out}
				b.observeRTT(out, now)
			}
			b.inFlight = nil
		}
		for _, d := range test.before {
			b.inFlight = append(b.inFlight, &batch{sentAt: now.Add(-d)})
		}
		for b.canSend(now) && len(b.inFlight) < 100 {
			b.inFlight = append(b.inFlight, &batch{sentAt: now})
		}
		if got := len(b.inFlight); got != test.want {
			t.Errorf("%s: %d batches in flight, want %d", test.name, got, test.want)
		}
	}
}
