package redisbackend

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/redis/internal/node"
)

// Few batches are in flight at once, and more only behind batches that take long for their
// size and for the other batches in flight.
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

// While the last answer was late, like a distant server's, no batch waits for another.
func TestInFlightByTheLastAnswer(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	answered := node.Outcome{Answered: true}
	for _, test := range []struct {
		name    string
		took    time.Duration
		limits  int
		behind  int // limits of the other batch in flight
		outcome node.Outcome
		was     bool // late
		want    int  // in flight at once
	}{
		{name: "quick", took: 300 * us, limits: 1, outcome: answered, want: maxRecent},
		{name: "late", took: ms, limits: 1, outcome: answered, want: maxInFlight},
		{name: "quick again", took: 300 * us, limits: 1, outcome: answered, was: true, want: maxRecent},
		{name: "large", took: ms, limits: 256, outcome: answered, was: true, want: maxRecent},
		{name: "behind a large one", took: ms, limits: 1, behind: 256, outcome: answered, was: true, want: maxRecent},
		{name: "large and late", took: 2 * ms, limits: 256, outcome: answered, want: maxInFlight},
		{name: "no answer", took: time.Second, limits: 1, want: maxRecent},
		{name: "no answer of a distant server", took: 300 * us, limits: 1, was: true, want: maxInFlight},
		{name: "some answers", took: time.Second, limits: 1, outcome: node.Outcome{Answered: true, Err: errWaited}, want: maxRecent},
	} {
		now := time.Now()
		out := &batch{sentAt: now.Add(-test.took), limits: test.limits, outcome: test.outcome}
		b := &batcher{countsFor: countsFor, mostInFlight: maxInFlight, slow: test.was, inFlight: []*batch{{sentAt: now, limits: test.behind}, out}}
		b.batchEnded(out, now)
		for b.inFlight = nil; b.canSend(now) && len(b.inFlight) < 100; {
			b.inFlight = append(b.inFlight, &batch{sentAt: now})
		}
		if got := len(b.inFlight); got != test.want {
			t.Errorf("%s: %d batches in flight, want %d", test.name, got, test.want)
		}
	}
}
