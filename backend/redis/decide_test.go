package redisbackend

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

var (
	now     = time.UnixMilli(1_900_000_000_000).UTC()
	replied = driver.NewRequest(at, []throttler.Charge{
		{Policy: &throttler.Policy{Name: "fixed", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour}}}, Key: "k", Cost: 1},
		{Policy: &throttler.Policy{Name: "two", Limits: []throttler.Limit{
			{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket},
			{Quota: 10, Window: time.Second, Algorithm: throttler.SlidingLog},
		}}, Key: "k", Cost: 2},
	}...)
)

const at = 1_900_000_000_000

// Any reply of a server is an error, or a decision that makes sense.
func FuzzReply(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0}, false)
	f.Add(statesReply(repliesAllowed), false)
	f.Add(statesReply(repliesRefused), true)
	f.Add([]byte{repliesUndecided}, false)
	f.Add([]byte("2600000000000000007"), false)
	f.Fuzz(func(t *testing.T, reply []byte, settles bool) {
		d, err := cutAndRead(replied, settles, reply)
		if err != nil {
			return
		}
		refused := false
		decided := decision.FromDriver(d)
		for _, s := range decided.Limits() {
			refused = refused || s.Refused
			if s.Used < 0 || s.Remaining < 0 || s.Remaining > s.Limit.Capacity() || s.ResetAt.Before(now) || s.Refused && s.RetryAt.Before(now) {
				t.Errorf("%x was accepted: %+v", reply, s)
			}
		}
		if d.Allowed == refused {
			t.Errorf("%x was accepted: %+v", reply, decided)
		}
	})
}

// cutAndRead reads the reply to the only decision of a call.
func cutAndRead(r driver.Request, settles bool, reply []byte) (driver.Decision, error) {
	reply, rest, err := splitReply(reply, len(r.Charges()))
	if err != nil || len(rest) > 0 {
		return driver.Decision{}, errReply
	}
	if settles {
		return readSettlement(settlementOf(r), reply)
	}
	return readTake(r, reply)
}

// settlementOf returns a settlement at the costs that r was charged.
func settlementOf(r driver.Request) *driver.Settlement {
	s := &driver.Settlement{Now: r.Now, Charged: driver.NewDecision(r)}
	for _, c := range r.Charges() {
		s.Costs = append(s.Costs, c.Cost)
	}
	return s
}

// statesReply returns a reply to replied with code, and the states that its charges leave.
func statesReply(code byte) []byte {
	b := []byte{code}
	for i := range replied.Charges() {
		var s algorithm.State
		c := &replied.Charges()[i]
		results := make([]driver.Result, len(c.Policy.Limits))
		s.Charge(c.Policy.Limits, c.Cost, at, results)
		state := s.Append(nil)
		if i == 1 { // a queue and a log; for a log, the sum and the times are replied
			state = state[3 : 3+60]
			state = append(state, 4)
			state = algorithm.AppendUint(state, 6, time.Second.Milliseconds())
			state = algorithm.AppendUint(algorithm.AppendUint(state, 7, results[1].Used), 6, at)
			state = algorithm.AppendUint(algorithm.AppendUint(state, 6, 0), 6, 0)
		}
		b = append(algorithm.AppendUint(b, 2, int64(len(state))), state...)
	}
	return b
}

// A decision can be read from the states that its charges leave.
func TestStatesReply(t *testing.T) {
	var states []*algorithm.State
	for range replied.Charges() {
		states = append(states, new(algorithm.State))
	}
	want := algorithm.Take(replied, states)
	got, err := cutAndRead(replied, false, statesReply(repliesAllowed))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	good := statesReply(repliesAllowed)
	for n := range len(good) {
		if d, err := cutAndRead(replied, false, good[:n]); err == nil {
			t.Errorf("%d bytes of %d are accepted: %+v", n, len(good), d)
		}
	}
	for why, reply := range map[string][]byte{
		"a byte too many":                     append(statesReply(repliesAllowed), 0),
		"refused, and all limits have room":   statesReply(repliesRefused),
		"an unknown code":                     statesReply(9),
		"allowed, and nothing was charged":    {repliesAllowed, 0, 0, 0, 0},
		"nothing that is decided":             {repliesUndecided},
		"a state of a kind that is not known": {repliesAllowed, 0, 1, 77, 0, 0},
	} {
		if d, err := cutAndRead(replied, false, reply); err == nil {
			t.Errorf("%s: accepted: %+v", why, d)
		}
	}
}

// Digits alone mean that a charge is allowed, and contain the units used before it.
func TestDigitsReply(t *testing.T) {
	charge := replied.Charges()[0] // 1000 per hour
	r := driver.NewRequest(at, charge)
	digitsAt := func(reset int64, used int) []byte {
		return fmt.Appendf(nil, "260%012d%04d", reset-1735689600000, used)
	}
	good := digitsAt(at+60_000, 7)
	d, err := cutAndRead(r, false, good)
	if err != nil || !d.Allowed || d.Results()[0].Used != 8 || d.Results()[0].ResetAt != at+60_000 {
		t.Errorf("%+v, %v; want it allowed, 8 used, and the reset time as it was", d, err)
	}
	for n := range len(good) {
		if d, err := cutAndRead(r, false, good[:n]); err == nil {
			t.Errorf("%d bytes of %d are accepted: %+v", n, len(good), d)
		}
	}
	for why, reply := range map[string][]byte{
		"a byte too many":   append(digitsAt(at+60_000, 7), '0'),
		"no room":           digitsAt(at+60_000, 1000),
		"more than digits":  []byte("260000000060000000x"),
		"no code of a time": []byte("0000000000600000007"),
		"an ended window":   digitsAt(at, 7),
		"another window":    append([]byte("161"), good[3:]...),
		"an aligned window": append([]byte("660"), good[3:]...),
	} {
		if d, err := cutAndRead(r, false, reply); err == nil {
			t.Errorf("%s: accepted: %+v", why, d)
		}
	}
	if d, err := cutAndRead(r, true, good); err == nil {
		t.Errorf("accepted of a settlement: %+v", d)
	}
	if d, err := cutAndRead(replied, false, good); err == nil {
		t.Errorf("accepted of two charges: %+v", d)
	}
}
