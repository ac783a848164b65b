package redisbackend

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler"
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

func TestRepliesThatNoScriptSends(t *testing.T) {
	good := []int64{1, 1, at + 1, 0, 0, 0, at + 1, 0, 10, at + 200, 0, at + 100, at, at + 200, 0, 2, at + 1000, 0, 0, 0, at, 0}
	if d, err := readNumbers(replied, false, good); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	for _, test := range []struct {
		why   string
		place int
		value int64
	}{
		{"neither allowed nor refused", 0, -1},
		{"neither allowed nor refused", 0, 4},
		{"refused, and no limit refuses", 0, 0},
		{"negative", 1, -5},
		{"above 2^53", 1, 1<<53 + 1},
		{"before now", 2, at - 1},
		{"negative", 2, -7},
		{"after the year 9999 and a window", 2, 1 << 60},
		{"allowed, and to retry", 3, at + 5},
		{"before never", 3, -9},
		{"never, and the cost is within the capacity", 3, -1},
		{"room before now", 11, at - 1},
		{"a start before now", 12, at - 1},
		{"a fraction that is negative", 14, -1},
		{"room later, and there is some now", 18, at + 500},
		{"a start, and no queue", 19, at},
	} {
		reply := append([]int64(nil), good...)
		reply[test.place] = test.value
		if d, err := readNumbers(replied, false, reply); err == nil {
			t.Errorf("%s: number %d as %d is accepted: %+v", test.why, test.place, test.value, d)
		}
	}
	for n := range len(good) {
		if _, err := readNumbers(replied, false, good[:n]); err == nil {
			t.Errorf("%d numbers of %d are accepted", n, len(good))
		}
	}
	if _, err := readNumbers(replied, false, append(good, 0)); err == nil {
		t.Error("a number too many is accepted")
	}
}

// Whatever a server replies: an error, or a decision that makes sense.
func FuzzReply(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0}, false)
	f.Add(statesReply(repliesAllowed), false)
	f.Add(statesReply(repliesRefused), true)
	f.Add([]byte{repliesNumbers, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}, false)
	f.Add([]byte("2600000000000000007"), false)
	f.Fuzz(func(t *testing.T, reply []byte, settles bool) {
		d, err := readDecision(replied, settles, reply)
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

// statesReply is a reply about replied, that its charges left these states.
func statesReply(code byte) []byte {
	b := []byte{code}
	for i := range replied.Charges() {
		var s algorithm.State
		c := &replied.Charges()[i]
		s.Charge(c.Policy.Limits, c.Cost, at, make([]driver.Result, len(c.Policy.Limits)))
		state := s.Append(nil)
		b = append(algorithm.AppendUint(b, 2, int64(len(state))), state...)
	}
	return b
}

// The states that a charge left say what the charge was answered.
func TestStatesReply(t *testing.T) {
	var states []*algorithm.State
	for range replied.Charges() {
		states = append(states, new(algorithm.State))
	}
	want := algorithm.Take(replied, states)
	got, err := readDecision(replied, false, statesReply(repliesAllowed))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	good := statesReply(repliesAllowed)
	for n := range len(good) {
		if d, err := readDecision(replied, false, good[:n]); err == nil {
			t.Errorf("%d bytes of %d are accepted: %+v", n, len(good), d)
		}
	}
	for why, reply := range map[string][]byte{
		"a byte too many":                      append(statesReply(repliesAllowed), 0),
		"refused, and all limits have room":    statesReply(repliesRefused),
		"an unknown code":                      statesReply(9),
		"allowed, and nothing was charged":     {repliesAllowed, 0, 0, 0, 0},
		"numbers that are cut short":           {repliesNumbers, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1},
		"no numbers":                           {repliesNumbers, 0, 0},
		"a state of a kind that is not known":  {repliesAllowed, 0, 1, 77, 0, 0},
		"numbers, and none says what happened": {repliesNumbers, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7},
	} {
		if d, err := readDecision(replied, false, reply); err == nil {
			t.Errorf("%s: accepted: %+v", why, d)
		}
	}
}

// Digits alone say that a charge is allowed, and what was used before it.
func TestDigitsReply(t *testing.T) {
	charge := replied.Charges()[0] // 1000 per hour
	r := driver.NewRequest(at, charge)
	digitsAt := func(reset int64, used int) []byte {
		return fmt.Appendf(nil, "260%012d%04d", reset-1735689600000, used)
	}
	good := digitsAt(at+60_000, 7)
	d, err := readDecision(r, false, good)
	if err != nil || !d.Allowed || d.Results()[0].Used != 8 || d.Results()[0].ResetAt != at+60_000 {
		t.Errorf("%+v, %v; want it allowed, 8 used, and the reset time as it was", d, err)
	}
	for n := range len(good) {
		if d, err := readDecision(r, false, good[:n]); err == nil {
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
		if d, err := readDecision(r, false, reply); err == nil {
			t.Errorf("%s: accepted: %+v", why, d)
		}
	}
	if d, err := readDecision(r, true, good); err == nil {
		t.Errorf("accepted of a settlement: %+v", d)
	}
	if d, err := readDecision(replied, false, good); err == nil {
		t.Errorf("accepted of two charges: %+v", d)
	}
}
