package redisbackend

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// moded is a request with a charge in each mode that a script knows.
var moded = func() driver.Request {
	p := replied.Charges()[0].Policy // 1000 per hour
	return driver.NewRequest(at,
		throttler.Charge{Policy: p, Key: "a", Cost: 5000, Mode: quota.AtMost},
		throttler.Charge{Policy: p, Key: "b", Cost: 1200, Mode: quota.Record},
		throttler.Charge{Policy: p, Key: "c", Cost: 7, Mode: quota.Check},
		throttler.Charge{Policy: p, Key: "d", Cost: 1},
	)
}()

// modesReply returns a reply that allows moded, charges cost to its first charge, and leaves
// these units used.
func modesReply(cost int64, used ...int64) []byte {
	b := algorithm.AppendUint([]byte{repliesAllowed, 0, costBytes}, costBytes, cost)
	for i, n := range used {
		var s algorithm.State
		if n > 0 {
			s.Charge(moded.Charges()[i].Policy.Limits, n, at, make([]driver.Result, 1))
		}
		state := s.Append(nil)
		b = append(algorithm.AppendUint(b, 2, int64(len(state))), state...)
	}
	return b
}

// readModes reads a reply to moded.
func readModes(reply []byte) (driver.Decision, error) {
	first, rest, err := splitReply(reply, len(moded.Charges())+1)
	if err != nil || len(rest) > 0 {
		return driver.Decision{}, errReply
	}
	return readTake(moded, first)
}

func TestModesReply(t *testing.T) {
	good := modesReply(1000, 1000, 1200, 0, 1)
	want := algorithm.Take(moded, []*algorithm.State{{}, {}, {}, {}})
	got, err := readModes(good)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	for n := range len(good) {
		if d, err := readModes(good[:n]); err == nil {
			t.Errorf("%d bytes of %d are accepted: %+v", n, len(good), d)
		}
	}
	for why, reply := range map[string][]byte{
		"a cost above what was asked":    modesReply(5001, 5001, 1200, 0, 1),
		"a cost of nothing":              modesReply(0, 1000, 1200, 0, 1),
		"a check that found no room":     modesReply(1000, 1000, 1200, 1000, 1),
		"refused, and there is room":     append([]byte{repliesRefused}, modesReply(1, 999, 1200, 0, 1)[1:]...),
		"undecided, and something after": append([]byte{repliesUndecided}, good[1:]...),
	} {
		if d, err := readModes(reply); err == nil {
			t.Errorf("%s: accepted: %+v", why, d)
		}
	}
	if moded.Charges()[0].Cost != 5000 {
		t.Error("the caller's charge has changed")
	}
}

// Any reply is an error, or charges no more than was asked for.
func FuzzModesReply(f *testing.F) {
	f.Add(modesReply(1000, 1000, 1200, 0, 1))
	f.Add(bytes.Replace(modesReply(3, 1000, 1200, 0, 1), []byte{repliesAllowed}, []byte{repliesRefused}, 1))
	f.Add([]byte{repliesAllowed, 0, 7, 8, 11, 0, 0})
	f.Fuzz(func(t *testing.T, reply []byte) {
		d, err := readModes(reply)
		if err != nil {
			return
		}
		for i, c := range moded.Charges() {
			if got := d.Charges()[i].Cost; d.Allowed && (got > c.Cost || got < 1) != (c.Mode == quota.Check) {
				t.Errorf("%x: charge %d, %v of %d, costs %d", reply, i, c.Mode, c.Cost, got)
			}
		}
	})
}
